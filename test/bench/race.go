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
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// schedulerBinary is heddle-scheduler. Without its plugin it is kube-scheduler.
const (
	schedulerBinary = "heddle-scheduler"
	raceNamespace   = "default"
	// raceLease is longer than a race: 4,608 nodes that renew their leases every 10 s are 460
	// requests a second, which alone keep an API server busy that has a core or two.
	raceLease = 4 * time.Hour
	// raceWriters is how many pods or nodes are made at once.
	raceWriters = 8
)

// race is schedulers that bind the same pods in turns, on a real API server with
// nodes that kwok simulates.
type race struct {
	cluster   *cluster.Cluster
	client    *kubernetes.Clientset
	installer *install.Installer
	binary    string
	dir       string
	log       io.Writer
}

// newRace starts the cluster; close ends it.
func newRace(ctx context.Context, log io.Writer) (r *race, err error) {
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return nil, err
	}
	r = &race{dir: dir, log: log}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

func (r *race) start(ctx context.Context) error {
	cache, err := cluster.DefaultCache()
	if err != nil {
		return err
	}
	if r.installer, err = install.New(ctx, filepath.Join(cache, "install-bench"), r.log); err != nil {
		return err
	}
	if r.binary, err = r.installer.Build(ctx, schedulerBinary); err != nil {
		return err
	}
	r.cluster, err = cluster.Up(ctx, cluster.Options{
		Name: "race", Kwok: true, NodeLease: raceLease, Log: r.log,
	})
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", r.cluster.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 5000, 5000
	if r.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	// Nothing is for the node that is real.
	_, err = r.cluster.Kubectl(ctx, "cordon", r.cluster.Node())
	return err
}

func (r *race) close(ctx context.Context) error {
	var err error
	if r.cluster != nil {
		err = r.cluster.Down(context.WithoutCancel(ctx))
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// ready waits for all nodes.
func (r *race) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		waits := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool {
			return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
		})
		if waits < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not Ready: %w", nodes.Items[waits].Name, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// contender is a scheduler, by the file of its configuration and its other flags.
type contender struct {
	name   string
	config string
	flags  []string
}

// contender writes a configuration: the text of a KubeSchedulerConfiguration,
// which is given the cluster's credentials. A profile that is not nil replaces
// its profiles.
func (r *race) contender(name, text string, profile map[string]any) (contender, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		return contender{}, fmt.Errorf("configuration of %s: %w", name, err)
	}
	connection, _ := fields["clientConnection"].(map[string]any)
	if connection == nil {
		connection = map[string]any{"qps": 1000, "burst": 2000}
	}
	connection["kubeconfig"] = r.cluster.Kubeconfig()
	fields["clientConnection"] = connection
	fields["leaderElection"] = map[string]any{"leaderElect": false}
	if profile != nil {
		profile["schedulerName"] = name
		fields["profiles"] = []any{profile}
	}
	out, err := yaml.Marshal(fields)
	if err != nil {
		return contender{}, fmt.Errorf("configuration of %s: %w", name, err)
	}
	c := contender{name: name, config: filepath.Join(r.dir, name+".yaml")}
	return c, os.WriteFile(c.config, out, 0o600)
}

// round makes the pods, then starts their scheduler, and returns how many it
// bound a second, from the first to the last, and the pods as bound.
func (r *race) round(ctx context.Context, c contender, pods []*corev1.Pod) (
	perSecond float64, bound map[string]*corev1.Pod, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	defer func() { err = errors.Join(err, r.clear(ctx)) }()
	if err := r.makePods(ctx, c, pods); err != nil {
		return 0, nil, err
	}
	events, stop := r.follow(ctx, 10*len(pods))
	defer stop()
	cmd := exec.CommandContext(ctx, r.binary, append([]string{"--config", c.config, "--secure-port=0"}, c.flags...)...)
	cmd.Stderr = r.log
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	var first time.Time
	bound = map[string]*corev1.Pod{}
	for len(bound) < len(pods) && err == nil {
		select {
		case <-ctx.Done():
			err = fmt.Errorf("%s bound %d of %d pods: %w", c.name, len(bound), len(pods), ctx.Err())
		case pod := <-events:
			if len(bound) == 0 {
				first = time.Now()
			}
			bound[pod.Name] = pod
		}
	}
	took := time.Since(first)
	err = errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait() // It ends by the signal.
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	perSecond = float64(len(pods)-1) / took.Seconds()
	fmt.Fprintf(r.log, "%s: %.0f pods/s; the scheduler had %.1f s of processor time\n", c.name, perSecond, used.Seconds())
	return perSecond, bound, err
}

func (r *race) makePods(ctx context.Context, c contender, pods []*corev1.Pod) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(raceWriters)
	for _, pod := range pods {
		pod.Spec.SchedulerName = c.name
		group.Go(func() error {
			_, err := r.client.CoreV1().Pods(raceNamespace).Create(within, pod, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("make pod %s: %w", pod.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// follow reports pods that have a node.
func (r *race) follow(ctx context.Context, room int) (bound <-chan *corev1.Pod, stop func()) {
	out := make(chan *corev1.Pod, room)
	report := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			out <- pod
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithNamespace(raceNamespace))
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	return r.client.CoreV1().Pods(raceNamespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{})
}
