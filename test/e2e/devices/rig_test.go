//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/machine"
	podkubelet "github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/cluster"
)

// The resources of every rig.
const (
	gpuResource = "nvidia.com/gpu"
	hcaResource = "rdma/hca_shared_devices_ib"
)

// patience is how long a test waits for any condition: more than a busy machine takes for
// anything. How long something may take is no matter of these tests.
const patience = 3 * time.Minute

// options describe the rig. The zero value but for its name is a DGX H100.
type options struct {
	// name is the cluster's, unique in this package.
	name string
	// machine is a name of test/machines; empty is dgx-h100.
	machine string
	// edit, if set, changes the machine before the plugin starts.
	edit func(*machine.Machine)
	// config is the ConfigMap's key cluster-config. The default makes recovery
	// take seconds instead of half a minute.
	config string
	// kubelet and gates are the cluster's.
	kubelet map[string]any
	// older has components of an older Kubernetes, emulated is the version of the others but for the kubelet.
	older, emulated string
	// crio, if set, has CRI-O's programs, which run in place of containerd.
	crio  string
	gates map[string]bool
	// held keeps the plugin from being started.
	held bool
	// stateSize, if set, makes the plugin's state directory a file system of this size.
	stateSize string
}

const quickHealth = `health: {downAfter: 1s, upAfter: 1s}
`

// rig is a cluster with a plugin on its node.
type rig struct {
	*cluster.Cluster
	client kubernetes.Interface
	// dir has all that the node needs: machine.json, config/, gpus/,
	// infiniband/, state/, static/. It has the same path on the node.
	dir    string
	plugin *process
	// conn is the kubelet's PodResources.
	conn *grpc.ClientConn
}

// current is the rig that is up. There is one at a time: two clusters on two processors wait
// for each other.
var current struct {
	name string
	rig  *rig
}

// newRig makes a rig for one test and takes it down after it.
func newRig(t *testing.T, o options) *rig {
	t.Helper()
	// Before sharedRig, whose own clean-up explains a failure.
	t.Cleanup(func() {
		if err := closeRig(); err != nil {
			t.Error(err)
		}
	})
	return sharedRig(t, o)
}

// sharedRig is the rig of that name, which the tests after this one find as it leaves it. A
// test that fails takes it down.
func sharedRig(t *testing.T, o options) *rig {
	t.Helper()
	if current.name != o.name {
		if err := closeRig(); err != nil {
			t.Error(err)
		}
		r, err := upRig(context.WithoutCancel(t.Context()), o)
		if err != nil {
			t.Fatal(errors.Join(err, r.down()))
		}
		current.name, current.rig = o.name, r
	}
	r := current.rig
	t.Cleanup(func() {
		if !t.Failed() || current.rig != r {
			return
		}
		r.explain(t)
		if err := closeRig(); err != nil {
			t.Error(err)
		}
	})
	if !o.held {
		r.waitRegistered(t)
	}
	return r
}

// closeRig takes down the rig that is up, if there is one.
func closeRig() error {
	r := current.rig
	current.name, current.rig = "", nil
	if r == nil {
		return nil
	}
	return r.down()
}

// failing is a whole rig, whose parts the test stops and breaks, and which it gives back whole.
func failing(t *testing.T) *rig {
	t.Helper()
	r := sharedRig(t, options{name: "fail"})
	r.whole(t)
	t.Cleanup(func() { r.whole(t) })
	return r
}

// whole brings up what does not run, and waits until the kubelet serves all
// devices of the machine.
func (r *rig) whole(t *testing.T) {
	t.Helper()
	if !r.plugin.running() {
		// Not the test's context: it has ended when this is a clean-up.
		if err := r.plugin.start(r.ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	m := r.machine(t)
	eventually(t, func() string {
		if _, err := r.get(r.ctx(t), "/readyz"); err != nil {
			return err.Error()
		}
		n, err := r.client.CoreV1().Nodes().Get(r.ctx(t), r.Node(), metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if q := n.Status.Allocatable[gpuResource]; q.Value() != int64(len(m.GPUs)) {
			return fmt.Sprintf("the node has %d GPUs of %d", q.Value(), len(m.GPUs))
		}
		if q := n.Status.Allocatable[hcaResource]; q.Value() == 0 {
			return "the node has no HCAs"
		}
		return ""
	})
}

// upRig makes a rig. What there is of it is returned also with an error.
func upRig(ctx context.Context, o options) (*rig, error) {
	r := &rig{}
	b, err := builds(ctx)
	if err != nil {
		return r, err
	}
	if r.dir, err = os.MkdirTemp("", "heddle-"+o.name+"-"); err != nil {
		return r, err
	}
	if err := r.layOut(o); err != nil {
		return r, err
	}
	kubelet := map[string]any{"staticPodPath": filepath.Join(r.dir, "static"), "fileCheckFrequency": "1s"}
	maps.Copy(kubelet, o.kubelet)
	r.Cluster, err = cluster.Up(ctx, cluster.Options{
		Name: "dev-" + o.name, Kubelet: kubelet, Older: o.older, CRIO: o.crio, EmulatedVersion: o.emulated,
		FeatureGates: o.gates,
	})
	if err != nil {
		return r, err
	}
	if err := r.LoadImage(ctx, b.archive); err != nil {
		return r, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig())
	if err != nil {
		return r, err
	}
	config.QPS, config.Burst = 500, 500
	if r.client, err = kubernetes.NewForConfig(config); err != nil {
		return r, err
	}
	if r.conn, err = podkubelet.Dial(r.NodeDir("/var/lib/kubelet/pod-resources/kubelet.sock")); err != nil {
		return r, err
	}
	// get asks by the API server's proxy, which passes on no token.
	r.plugin = &process{rig: r, binary: b.node, daemon: pluginDaemon, log: &journal{}, always: []string{"--authenticate=false"}}
	if o.held {
		return r, nil
	}
	return r, r.plugin.start(ctx)
}

// down removes everything, the log and the files included.
func (r *rig) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if r.plugin != nil {
		errs = append(errs, r.plugin.stop(ctx))
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	if r.Cluster != nil {
		errs = append(errs, r.Down(ctx))
	}
	if err := unix.Unmount(r.stateDir(), 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// topologyCRD installs the chart's definition of NodeTopology.
func (r *rig) topologyCRD(t *testing.T) {
	t.Helper()
	const name = "topology.heddle.dev_nodetopologies.yaml"
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy/helm/heddle/crds", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
	r.kubectl(t, "wait", "crd/nodetopologies.topology.heddle.dev", "--for=condition=Established", "--timeout=3m")
}

// kubectl runs it, and returns what it prints.
func (r *rig) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// node is the Node object.
func (r *rig) node(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := r.client.CoreV1().Nodes().Get(t.Context(), r.Node(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// allocatable is what the Node has of a resource; -1 if it does not name it.
func (r *rig) allocatable(t *testing.T, resource string) int64 {
	t.Helper()
	q, ok := r.node(t).Status.Allocatable[corev1.ResourceName(resource)]
	if !ok {
		return -1
	}
	return q.Value()
}

func (r *rig) waitAllocatable(t *testing.T, resource string, want int64) {
	t.Helper()
	eventually(t, func() string {
		if got := r.allocatable(t, resource); got != want {
			return fmt.Sprintf("allocatable %s is %d, want %d", resource, got, want)
		}
		return ""
	})
}

// waitRegistered waits until the plugin reports that the kubelet took all of it.
func (r *rig) waitRegistered(t *testing.T) time.Duration {
	t.Helper()
	return eventually(t, func() string {
		out, err := r.get(t.Context(), "/readyz")
		if err != nil {
			return fmt.Sprintf("plugin is not ready: %v %s", err, out)
		}
		return ""
	})
}

// get asks the plugin's HTTP server, through the API server.
func (r *rig) get(ctx context.Context, path string) (string, error) {
	b, err := r.client.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/nodes/http:" + r.Node() + ":9102/proxy" + path).Do(ctx).Raw()
	return string(b), err
}

// metrics are the plugin's lines of one name, labels included.
func (r *rig) metrics(t *testing.T, name string) []string {
	t.Helper()
	text, err := r.get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// waitOffered waits until the plugin offers this many healthy devices.
func (r *rig) waitOffered(t *testing.T, resource string, n int) {
	t.Helper()
	want := fmt.Sprintf("heddle_resource_allocatable{resource=%q} %d", resource, n)
	eventually(t, func() string {
		lines := r.metrics(t, "heddle_resource_allocatable")
		if !slices.Contains(lines, want) {
			return fmt.Sprintf("metrics have %q, want %q", lines, want)
		}
		return ""
	})
}

// podResources is the kubelet's account of who has what.
func (r *rig) podResources(t *testing.T) []*podresources.PodResources {
	t.Helper()
	var answer *podresources.ListPodResourcesResponse
	eventually(t, func() string {
		var err error
		answer, err = podresources.NewPodResourcesListerClient(r.conn).List(t.Context(), &podresources.ListPodResourcesRequest{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return answer.GetPodResources()
}

// explain shows what a failed test's reader wants to see.
func (r *rig) explain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	t.Logf("plugin's log:\n%s", tail(r.plugin.log.String(), 6000))
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp", "-o", "custom-columns=O:.involvedObject.name,R:.reason,M:.message"},
	} {
		out, err := r.Kubectl(ctx, args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, tail(out, 5000))
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// eventually waits until ok returns "" and fails with its last word.
func eventually(t *testing.T, ok func() string) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		why := ok()
		if why == "" {
			return time.Since(start)
		}
		if time.Since(start) > patience {
			t.Fatalf("after %s: %s", patience, why)
		}
		<-tick.C
	}
}
