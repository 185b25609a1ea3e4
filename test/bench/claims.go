//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

const (
	// claimsHeld are prepared while claimsTimed come and go.
	claimsHeld, claimsTimed = 100, 500
	// leastDriver is the name of a driver that prepares nothing.
	leastDriver = "least.example.com"
	claimsDir   = "/var/lib/kubelet/plugins/" + claims.Driver
)

// claimed runs claims through the DRA driver: the package's own benchmark, and the daemon beside a real API server.
func claimed(ctx context.Context, log io.Writer, idle time.Duration) (rows []row, err error) {
	rows, err = runAll(ctx, log, []benchmark{{"./deviceplugin/claims", "BenchmarkClaimsLeaveNothing", "1x", []figure{
		{"1,000 claims come and go: goroutines more", "goroutines-more", 1, 0, ""},
		{"files more", "files-more", 1, 0, ""},
		{"claims more", "claims-more", 1, 0, ""},
	}}})
	if err != nil {
		return nil, err
	}
	c, i, err := oneNode(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down(context.WithoutCancel(ctx))) }()
	b := &claimsBench{Cluster: c, log: log, idle: idle, dump: filepath.Join(i.Root, "test/machines/dgx-h100.json")}
	if b.binary, err = i.Build(ctx, nodeProgram); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "heddle-bench-*"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	more, err := b.measure(ctx)
	return append(rows, more...), err
}

// claimsBench is a node with the DRA driver, which it calls as the kubelet does.
type claimsBench struct {
	*cluster.Cluster
	log               io.Writer
	idle              time.Duration
	binary, dump, dir string
	client            kubernetes.Interface
}

func (b *claimsBench) measure(ctx context.Context) (rows []row, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS, config.ContentType = -1, runtime.ContentTypeProtobuf // As the daemon's client.
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	err = errors.Join(install.DeviceNodes(b.dump, b.dir), os.Mkdir(filepath.Join(b.dir, "config"), 0o750),
		os.WriteFile(filepath.Join(b.dir, "config/version"), []byte("v1"), 0o600))
	if err != nil {
		return nil, err
	}
	off, err := b.run(ctx, "native", func() error { return nil })
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	published, err := b.published(ctx)
	if err != nil {
		return nil, err
	}
	var first, idleWrites, again int64
	var after time.Duration
	on, err := b.run(ctx, "claims", func() (err error) {
		select {
		case <-time.After(startTime):
			return errors.New("not all ResourceSlices are published")
		case at := <-published:
			after = at.Sub(begin)
		}
		if first, err = b.writes(ctx); err != nil {
			return err
		}
		if err := sleep(ctx, b.idle); err != nil {
			return err
		}
		idleWrites, err = b.writes(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var ours, theirs []time.Duration
	if _, err = b.run(ctx, "claims", func() (err error) {
		if ours, theirs, err = b.prepare(ctx); err != nil {
			return err
		}
		again, err = b.writes(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	p50 := func(all []time.Duration) float64 { return all[len(all)/2].Seconds() * 1000 }
	p99 := func(all []time.Duration) float64 { return all[len(all)*99/100].Seconds() * 1000 }
	fmt.Fprintf(b.log, "NodePrepareResources: p50 %.1f ms; the least driver's: p50 %.1f ms, p99 %.1f ms\n",
		p50(ours), p50(theirs), p99(theirs))
	how := fmt.Sprintf("real API server, %d claims prepared", claimsHeld)
	const node = "8 GPUs and 12 HCAs, real API server"
	return []row{
		atMost("NodePrepareResources of a share, p99", p99(ours), 10, "ms", how),
		atMost("NodePrepareResources of a share, p50, to the least driver", p50(ours)/p50(theirs), 3, "x", how),
		atMost("start of the driver to all ResourceSlices", after.Seconds(), 2, "s", node),
		atMost("writes of ResourceSlices, to their number", float64(first)/float64(sliceCount), 1, "x", node),
		atMost("writes of ResourceSlices while idle", float64(idleWrites-first), 0, "", fmt.Sprint(node, ", ", b.idle)),
		atMost("writes of ResourceSlices at a restart", float64(again-idleWrites), 0, "", node),
		atMost("anonymous memory of the DRA driver", on-off, 8, "MB", "/proc/PID/smaps_rollup, with and without claims"),
	}, nil
}

// sliceCount is how many ResourceSlices a DGX H100 has: one for each GPU, one of other HCAs, and two of counters.
const sliceCount = 10

// run runs the daemon in a mode, has something done while it runs, and returns its anonymous memory in the end.
func (b *claimsBench) run(ctx context.Context, mode string, do func() error) (mb float64, err error) {
	if err := os.WriteFile(filepath.Join(b.dir, "config/cluster-config"), []byte("mode: "+mode+"\n"), 0o600); err != nil {
		return 0, err
	}
	args := []string{
		"device-plugin", "--node-name", b.Node(), "--machine", b.dump, "--log-level", "warn",
		"--metrics-address", "127.0.0.1:19110", "--config", filepath.Join(b.dir, "config"),
		"--dev-root", b.dir, "--state-dir", filepath.Join(b.dir, "state-"+mode), // Its GPUs change no mode.
	}
	if mode == "claims" {
		args = append(args, "--claims-dir", claimsDir)
	}
	pid, end, err := onNode(ctx, b.Cluster, b.log, daemon{program: b.binary, args: args})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := do(); err != nil {
		return 0, err
	}
	if err := sleep(ctx, settling); err != nil {
		return 0, err
	}
	return memory(pid, "Anonymous:")
}

// writes counts the writes of all ResourceSlices that there are.
func (b *claimsBench) writes(ctx context.Context) (n int64, err error) {
	list, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		n += list.Items[i].Generation
	}
	return n, nil
}

// published sends the time at which the last of all slices was made.
func (b *claimsBench) published(ctx context.Context) (<-chan time.Time, error) {
	w, err := b.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	last := make(chan time.Time, 1)
	go func() {
		defer w.Stop()
		for range sliceCount {
			if _, ok := <-w.ResultChan(); !ok {
				return
			}
		}
		last <- time.Now()
	}()
	return last, nil
}

// prepare times calls of the driver and of one that prepares nothing, in turns.
func (b *claimsBench) prepare(ctx context.Context) (ours, theirs []time.Duration, err error) {
	dir := filepath.Join(b.dir, "least")
	for _, sub := range []string{dir, filepath.Join(dir, "plugin"), filepath.Join(dir, "registry")} {
		if err := os.Mkdir(sub, 0o750); err != nil {
			return nil, nil, err
		}
	}
	helper, err := kubeletplugin.Start(ctx, least{},
		kubeletplugin.DriverName(leastDriver), kubeletplugin.NodeName(b.Node()), kubeletplugin.KubeClient(b.client),
		kubeletplugin.PluginDataDirectoryPath(filepath.Join(dir, "plugin")),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "registry")), kubeletplugin.HealthService(false))
	if err != nil {
		return nil, nil, err
	}
	defer helper.Stop()
	own, err := dial(filepath.Join(b.NodeDir(claimsDir), "dra.sock"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = own.Close() }()
	other, err := dial(filepath.Join(dir, "plugin", "dra.sock"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = other.Close() }()
	gpus, err := b.gpus(ctx)
	if err != nil {
		return nil, nil, err
	}
	// All are allocated before: the kubelet calls once the pod is bound, and no API server of a cluster writes on the
	// processors of a node.
	var all []*resourceapi.ResourceClaim
	for n := range claimsHeld + claimsTimed {
		c, err := b.allocated(ctx, n, gpus[n%len(gpus)])
		if err != nil {
			return nil, nil, err
		}
		all = append(all, c)
	}
	for n, c := range all {
		calls := []call{{own, &ours}, {other, &theirs}} // Either is first in turn.
		if n%2 == 1 {
			slices.Reverse(calls)
		}
		if err := errors.Join(calls[0].time(ctx, c), calls[1].time(ctx, c)); err != nil {
			return nil, nil, err
		}
		if n < claimsHeld {
			continue
		}
		if err := unprepare(ctx, own, c); err != nil {
			return nil, nil, err
		}
	}
	return ours[claimsHeld:], theirs[claimsHeld:], nil
}

// gpus returns the names of the devices that are whole GPUs.
func (b *claimsBench) gpus(ctx context.Context) (names []string, err error) {
	list, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		for j := range list.Items[i].Spec.Devices {
			d := &list.Items[i].Spec.Devices[j]
			if kind := d.Attributes[claims.AttributeType].StringValue; kind != nil && *kind == string(claims.GPU) {
				names = append(names, d.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no GPU is published")
	}
	return names, nil
}

// allocated creates a claim with a percent of a GPU, as the scheduler would allocate it.
func (b *claimsBench) allocated(ctx context.Context, n int, gpu string) (*resourceapi.ResourceClaim, error) {
	api := b.client.ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	c, err := api.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("bench-", n)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "share", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "sgpu.heddle.dev"},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "share", Driver: claims.Driver, Pool: b.Node(), Device: gpu, ShareID: new(c.UID),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				claims.CapacityVCore: resource.MustParse("1"), claims.CapacityVMemory: resource.MustParse("64Mi"),
			},
		}},
	}}
	return api.UpdateStatus(ctx, c, metav1.UpdateOptions{})
}

func unprepare(ctx context.Context, conn *grpc.ClientConn, c *resourceapi.ResourceClaim) error {
	answer, err := dra.NewDRAPluginClient(conn).NodeUnprepareResources(ctx, &dra.NodeUnprepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}},
	})
	if reason := answer.GetClaims()[string(c.UID)].GetError(); err == nil && reason != "" {
		err = errors.New(reason)
	}
	return err
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// call is a driver, and how long its calls took.
type call struct {
	conn *grpc.ClientConn
	took *[]time.Duration
}

// time has the driver prepare a claim.
func (d call) time(ctx context.Context, c *resourceapi.ResourceClaim) error {
	begin := time.Now()
	answer, err := dra.NewDRAPluginClient(d.conn).NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}},
	}, grpc.WaitForReady(true))
	*d.took = append(*d.took, time.Since(begin))
	if reason := answer.GetClaims()[string(c.UID)].GetError(); err == nil && reason != "" {
		err = errors.New(reason)
	}
	return err
}

// least is a driver that prepares nothing.
type least struct{ kubeletplugin.DRAPlugin }

func (least) PrepareResourceClaims(
	_ context.Context, all []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range all {
		results[c.UID] = kubeletplugin.PrepareResult{}
	}
	return results, nil
}
