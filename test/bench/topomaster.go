//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

// fleet is how many nodes topo-master is weighed with.
const fleet = 16384

// The load of the measured master: full answers, at this rate, by as many clients
// as that takes.
const (
	fullAnswers = 1000
	perSecond   = 100
	notModified = 5000
)

// topoMaster weighs heddle-topo-master with a fleet in an API server in memory:
// Nodes, pods and NodeTopologies of 8 rails, as its watches bring them.
func topoMaster(ctx context.Context, log io.Writer) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "heddle-topo-master")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w",
		"-o", binary, "./cmd/heddle-topo-master")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build topo-master: %w\n%s", err, out)
	}
	fmt.Fprintf(log, "making a fleet of %d nodes\n", fleet)
	kubeconfig, stop, err := serveFleet(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	m := newMasterProcess("http://127.0.0.1:19001")
	begin := time.Now()
	m.cmd = exec.CommandContext(ctx, binary, "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:19001",
		"--namespace", "heddle-system", "--exports", "none", "--log-level", "warn")
	m.cmd.Stderr = log
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start topo-master: %w", err)
	}
	defer func() {
		err = errors.Join(err, m.cmd.Process.Signal(syscall.SIGTERM))
		_ = m.cmd.Wait() // It ends by the signal.
	}()
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	first := time.Since(begin)
	return m.weigh(ctx, first, log)
}

// serveFleet fills an API server and returns the kubeconfig for it.
func serveFleet(ctx context.Context, dir string) (kubeconfig string, stop func(), err error) {
	s := apiserver.New()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(fleet, 32), Rails: 8, Pod: 16})
	for i := range f.Nodes {
		n := &f.Nodes[i]
		uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		s.Put("nodes", benchNode(n.Name, uid))
		s.Put("nodetopologies", benchReport(n, uid))
		s.Put("pods", benchPod(n.Name, i))
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	kubeconfig = filepath.Join(dir, "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'http://" +
		listener.Addr().String() + "'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
	return kubeconfig, func() { _ = server.Close() }, os.WriteFile(kubeconfig, []byte(text), 0o600)
}

// benchNode is as large as Nodes are: images make half of one.
func benchNode(name string, uid types.UID) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Labels: map[string]string{}}}
	for i := range 40 {
		n.Labels[fmt.Sprintf("example.com/label-%02d", i)] = "some-value"
	}
	for i := range 30 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example.com/project/image-%02d@sha256:%064d", i, i)}, SizeBytes: 1 << 30,
		})
	}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
	}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("192"), "memory": resource.MustParse("2Ti"), "nvidia.com/gpu": resource.MustParse("8"),
	}
	return n
}

func benchReport(n *fabrics.Node, uid types.UID) *v1alpha1.NodeTopology {
	spec := n.Spec.DeepCopy()
	for i := range spec.Rails {
		spec.Rails[i].GPUs = []string{fmt.Sprintf("GPU-%s-%04d-4000-8000-000000000000", n.Name[len(n.Name)-6:], i)}
	}
	return &v1alpha1.NodeTopology{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: n.Name, UID: uid,
		}}},
		Spec: *spec, Status: v1alpha1.NodeTopologyStatus{HeartbeatTime: new(metav1.Now())},
	}
}

// benchPod holds a node's GPUs, and is in a gang with 31 others.
func benchPod(node string, i int) *corev1.Pod {
	job := fmt.Sprintf("job-%04d", i/32)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: fmt.Sprint(job, "-worker-", i%32), CreationTimestamp: metav1.Now(),
		Labels: map[string]string{wellknown.GangName: job, wellknown.GangMinAvailable: "32"},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
	}}}
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	return p
}

// masterProcess is the measured program.
type masterProcess struct {
	cmd *exec.Cmd
	url string
	// client keeps a connection for each answer that is under way.
	client *http.Client
	// rooms are what answers are read into: the reader shares the processors
	// with the server, and its small reads would be half of what is measured.
	rooms sync.Pool
}

func newMasterProcess(url string) *masterProcess {
	return &masterProcess{
		url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: perSecond, ReadBufferSize: 64 << 10}},
		rooms: sync.Pool{New: func() any { return new([256 << 10]byte) }},
	}
}

func (m *masterProcess) ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for {
		if code, _, err := m.get(ctx, "/readyz", ""); err == nil && code == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return errors.New("topo-master was not ready within 2 minutes")
		case <-tick.C:
		}
	}
}

// get asks for the whole answer, uncompressed, and returns its tag.
func (m *masterProcess) get(ctx context.Context, path, known string) (code int, tag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if known != "" {
		req.Header.Set("If-None-Match", known)
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	room, _ := m.rooms.Get().(*[256 << 10]byte)
	defer m.rooms.Put(room)
	for err == nil {
		_, err = resp.Body.Read(room[:])
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return resp.StatusCode, resp.Header.Get("ETag"), err
}

func (m *masterProcess) weigh(ctx context.Context, first time.Duration, log io.Writer) ([]row, error) {
	_, tag, err := m.get(ctx, "/node_group", "")
	if err != nil {
		return nil, err
	}
	full, err := m.load(ctx)
	if err != nil {
		return nil, err
	}
	unchanged := make([]time.Duration, notModified)
	for i := range unchanged {
		begin := time.Now()
		code, _, err := m.get(ctx, "/node_group", tag)
		if unchanged[i] = time.Since(begin); err != nil || code != http.StatusNotModified {
			return nil, fmt.Errorf("asked again for %s: %d, %w", tag, code, err)
		}
	}
	begin := time.Now()
	if code, _, err := m.get(ctx, "/v1/gangs", ""); err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("gangs: %d, %w", code, err)
	}
	gangs := time.Since(begin)
	// Memory for the initial lists returns to the system.
	fmt.Fprintln(log, "letting topo-master rest for 10 s")
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	anon, rss, peak, err := resident(m.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	const what, pace = "topo-master, 16384 nodes: ", "100 requests/s over loopback, 1.3 MB each"
	const proc = "/proc/PID/status, Nodes, pods, reports watched"
	rows, err := runAll(ctx, log, []benchmark{{"./topo/master/httpapi", "BenchmarkNotModified", "2s", []figure{
		{what + "304, in the server", "ns/op", 1e-3, 50, "us"},
	}}})
	if err != nil {
		return nil, err
	}
	return append(rows, []row{
		atMost(what+"start to first tree", first.Seconds(), 60, "s",
			"exec until /readyz; the API server is beside it, all JSON"),
		atMost(what+"304, median", percentile(unchanged, 50).Seconds()*1e6, 500, "us", "with the client, over loopback"),
		atMost(what+"full answer, p99", percentile(full, 99).Seconds()*1e3, 20, "ms", pace),
		atMost(what+"gangs, first answer", gangs.Seconds()*1e3, 100, "ms",
			"512 gangs of 32 pods; once for each change, if asked"),
		atMost(what+"resident memory", rss, 120, "MB", proc+": VmRSS after the load"),
		atMost(what+"anonymous memory", anon, 100, "MB", proc+": RssAnon"),
		atMost(what+"peak memory", peak, 160, "MB", proc+": VmHWM, while it read everything"),
	}...), nil
}

// load asks for full answers at a steady pace, whether or not the ones before
// have come.
func (m *masterProcess) load(ctx context.Context) ([]time.Duration, error) {
	took, faults := make([]time.Duration, fullAnswers), make([]error, fullAnswers)
	var group sync.WaitGroup
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for i := range took {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		group.Go(func() {
			begin := time.Now()
			_, _, faults[i] = m.get(ctx, "/node_group", "")
			took[i] = time.Since(begin)
		})
	}
	group.Wait()
	return took, errors.Join(faults...)
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*p/100]
}

// resident reads RssAnon, VmRSS and VmHWM out of /proc/PID/status, in MB of 2^20 bytes.
func resident(pid int) (anon, rss, peak float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	read := func(field string) float64 {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, field+":"); ok {
				kb, errParse := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				err = errors.Join(err, errParse)
				return kb / 1024
			}
		}
		err = errors.Join(err, fmt.Errorf("no %s in /proc/%d/status", field, pid))
		return 0
	}
	return read("RssAnon"), read("VmRSS"), read("VmHWM"), err
}
