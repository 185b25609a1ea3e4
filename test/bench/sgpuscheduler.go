//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// The fleet of shares: so many nodes, GPU of a node, pods that come at once,
// and turns of each scheduler.
const (
	shareNodes = 50
	sharedGPUs = 8
	sharePods  = 600
	shareTurns = 5
)

// race is heddle-scheduler beside the same program without the plugin, which is
// kube-scheduler, on a real API server with simulated nodes.
type race struct {
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	binary  string
	// configs are the schedulers' files, by scheduler name.
	configs map[string]string
	log     io.Writer
}

const (
	// sharing is the scheduler with the plugin, and plain the one without.
	sharing, plain = "heddle-scheduler", "plain"
	shareNamespace = "default"
)

// sgpuScheduler lets both bind the same pods, in turns: one chooses a GPU for
// each, the other counts their resources by node.
func sgpuScheduler(ctx context.Context, log io.Writer) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cache, err := cluster.DefaultCache()
	if err != nil {
		return nil, err
	}
	i, err := install.New(ctx, filepath.Join(cache, "install-bench"), log)
	if err != nil {
		return nil, err
	}
	r := &race{log: log}
	if r.binary, err = i.Build(ctx, sharing); err != nil {
		return nil, err
	}
	if r.cluster, err = cluster.Up(ctx, cluster.Options{Name: "bench", Kwok: true, Replace: true, Log: log}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cluster.Down(context.WithoutCancel(ctx))) }()
	if err := errors.Join(r.connect(), r.configure(i.Root, dir), r.fill(ctx)); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

func (r *race) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", r.cluster.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 5000, 5000
	r.client, err = kubernetes.NewForConfig(config)
	return err
}

// configure writes the documented configuration, and one with kube-scheduler's
// defaults. Neither is held up by its own client: 50 requests a second, which is
// the default, would be all that is measured.
func (r *race) configure(root, dir string) error {
	text, err := os.ReadFile(filepath.Join(root, "cmd/heddle-scheduler/testdata/scheduler.yaml"))
	if err != nil {
		return err
	}
	documented := map[string]any{}
	if err := yaml.Unmarshal(text, &documented); err != nil {
		return fmt.Errorf("documented configuration: %w", err)
	}
	r.configs = map[string]string{}
	for name, profiles := range map[string]any{
		sharing: documented["profiles"], plain: []any{map[string]any{"schedulerName": plain}},
	} {
		text, err := yaml.Marshal(map[string]any{
			"apiVersion": documented["apiVersion"], "kind": documented["kind"], "profiles": profiles,
			"leaderElection":   map[string]any{"leaderElect": false},
			"clientConnection": map[string]any{"kubeconfig": r.cluster.Kubeconfig(), "qps": 5000, "burst": 5000},
		})
		if err != nil {
			return fmt.Errorf("configuration of %s: %w", name, err)
		}
		r.configs[name] = filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(r.configs[name], text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fill adds the nodes. Nothing is for the one that is real.
func (r *race) fill(ctx context.Context) error {
	if _, err := r.cluster.Kubectl(ctx, "cordon", r.cluster.Node()); err != nil {
		return err
	}
	for n := range shareNodes {
		name := fmt.Sprintf("GPU-%02d", n)
		all := allocation.NodeGPUs{Version: allocation.Version}
		for index := range sharedGPUs {
			all.GPUs = append(all.GPUs, allocation.GPU{
				UUID: fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", n, index), Index: index,
				MemoryMiB: 80 << 10, Slots: 16, Healthy: true,
			})
		}
		d := wellknown.DefaultDomains()
		if err := r.cluster.AddSimulatedNode(ctx, cluster.SimulatedNode{
			Name: name, Annotations: map[string]string{wellknown.SGPUCards: all.String()},
			Capacity: map[string]string{
				d.SGPUResource():    strconv.Itoa(16 * sharedGPUs),
				d.VCoreResource():   strconv.Itoa(100 * sharedGPUs),
				d.VMemoryResource(): strconv.Itoa(80 * sharedGPUs),
			},
		}); err != nil {
			return err
		}
	}
	_, err := r.cluster.Kubectl(ctx, "wait", "nodes", "--all", "--for=condition=Ready", "--timeout=60s")
	return err
}

func (r *race) run(ctx context.Context) ([]row, error) {
	var shares, ratios []float64
	for range shareTurns {
		first, err := r.turn(ctx, sharing)
		if err != nil {
			return nil, err
		}
		second, err := r.turn(ctx, plain)
		if err != nil {
			return nil, err
		}
		shares, ratios = append(shares, first), append(ratios, first/second)
	}
	slices.Sort(shares)
	slices.Sort(ratios)
	how := fmt.Sprintf("%d nodes, real API server, median of %d turns of %d pods", shareNodes, shareTurns, sharePods)
	return []row{
		atLeast("pods with shares of GPUs, to kube-scheduler without GPU", ratios[shareTurns/2], 0.9, "x", how),
		atLeast("the same, pods a second", shares[shareTurns/2], 20, "", how),
	}, nil
}

// turn makes pods, then starts their scheduler, and returns how many it bound a
// second, from the first to the last.
func (r *race) turn(ctx context.Context, scheduler string) (perSecond float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	defer func() { err = errors.Join(err, r.clear(ctx)) }()
	for i := range sharePods {
		_, err := r.client.CoreV1().Pods(shareNamespace).Create(ctx, sharePod(scheduler, i), metav1.CreateOptions{})
		if err != nil {
			return 0, fmt.Errorf("make pod %d: %w", i, err)
		}
	}
	bound, stop := r.follow(ctx)
	defer stop()
	cmd := exec.CommandContext(ctx, r.binary, "--config", r.configs[scheduler], "--secure-port=0")
	cmd.Stderr = r.log
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", scheduler, err)
	}
	var first time.Time
	pods := map[string]*corev1.Pod{}
	for len(pods) < sharePods && err == nil {
		select {
		case <-ctx.Done():
			err = fmt.Errorf("%s bound %d of %d pods: %w", scheduler, len(pods), sharePods, ctx.Err())
		case pod := <-bound:
			if len(pods) == 0 {
				first = time.Now()
			}
			pods[pod.Name] = pod
		}
	}
	took := time.Since(first)
	err = errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait() // It ends by the signal.
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	perSecond = (sharePods - 1) / took.Seconds()
	fmt.Fprintf(r.log, "%s: %.0f pods/s; the scheduler had %.1f s of processor time\n",
		scheduler, perSecond, used.Seconds())
	return perSecond, errors.Join(err, checkShares(scheduler, pods))
}

// follow reports pods that have a node.
func (r *race) follow(ctx context.Context) (bound <-chan *corev1.Pod, stop func()) {
	out := make(chan *corev1.Pod, 10*sharePods)
	report := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			out <- pod
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithNamespace(shareNamespace))
	// It fails once the informer has stopped, which has not started.
	_, _ = factory.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: report, UpdateFunc: func(_, object any) { report(object) },
	})
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return out, func() { cancel(); factory.Shutdown() }
}

// clear deletes all pods. With no grace they are gone when that is answered.
func (r *race) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return r.client.CoreV1().Pods(shareNamespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{})
}

// sharePod asks for a tenth of a GPU, which plain kube-scheduler takes for three
// numbers of the node.
func sharePod(scheduler string, i int) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	d := wellknown.DefaultDomains()
	for name, n := range map[string]int64{d.SGPUResource(): 1, d.VCoreResource(): 10, d.VMemoryResource(): 4} {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("share-%03d", i)},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers: []corev1.Container{{
				Name: "main", Image: "busybox:1.37", Resources: corev1.ResourceRequirements{Limits: list},
			}},
		},
	}
}

// checkShares makes sure that what was measured is what was asked for: every pod
// has a GPU, and no GPU more than it has.
func checkShares(scheduler string, pods map[string]*corev1.Pod) error {
	if scheduler != sharing {
		return nil
	}
	used := map[string]int{}
	for name, pod := range pods {
		got, err := allocation.ParseAllocation(pod.Annotations[wellknown.SGPUAllocation])
		if err != nil || got.Node != pod.Spec.NodeName || len(got.Containers["main"]) != 1 {
			return fmt.Errorf("pod %s has no GPU: %q: %w", name, pod.Annotations[wellknown.SGPUAllocation], err)
		}
		share := got.Containers["main"][0]
		if used[share.UUID] += share.VCore; used[share.UUID] > 100 {
			return fmt.Errorf("GPU %s is allocated twice", share.UUID)
		}
	}
	return nil
}
