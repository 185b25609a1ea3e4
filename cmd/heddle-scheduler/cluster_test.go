package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	fwk "k8s.io/kube-scheduler/framework"
	kube "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

const gpu = "nvidia.com/gpu"

// cluster is the whole scheduler on an API server in memory.
type cluster struct {
	testing.TB
	client *fake.Clientset
	plugin *plugin.Plugin
	stop   func()
	// registry has the plugin's metrics.
	registry metrics.KubeRegistry
	// rivals is for two schedulers: a second binding of a pod is a conflict, not a fault.
	rivals atomic.Bool
	// version is the last resourceVersion that the test gave out.
	version atomic.Int64
	writes  sync.Mutex
}

// start runs the scheduler with the documented configuration, and with what the
// test wants of the plugin's arguments.
func start(tb testing.TB, args string, nodes ...*corev1.Node) *cluster {
	tb.Helper()
	return startFrom(tb, documented, args, nodes...)
}

func startFrom(tb testing.TB, file, args string, nodes ...*corev1.Node) *cluster {
	tb.Helper()
	return startAs(tb, withArgs(loaded(tb, file), args), nodes...)
}

// withArgs is a configuration with these arguments of the plugin.
func withArgs(c *config.KubeSchedulerConfiguration, args string) *config.KubeSchedulerConfiguration {
	for i := range c.Profiles[0].PluginConfig {
		if c.Profiles[0].PluginConfig[i].Name == plugin.Name {
			c.Profiles[0].PluginConfig[i].Args = &runtime.Unknown{Raw: []byte(args), ContentType: runtime.ContentTypeJSON}
		}
	}
	return c
}

// startAs runs the scheduler with any configuration.
func startAs(tb testing.TB, c *config.KubeSchedulerConfiguration, nodes ...*corev1.Node) *cluster {
	tb.Helper()
	w := unscheduled(tb, nodes...)
	w.schedule(c)
	return w
}

// unscheduled is a cluster before its scheduler starts: what a test adds is in all its caches
// before it places a pod.
func unscheduled(tb testing.TB, nodes ...*corev1.Node) *cluster {
	tb.Helper()
	w := &cluster{TB: tb, client: fake.NewClientset()}
	if _, ok := tb.(*testing.B); ok {
		// One that keeps no account of who owns which field, which costs more
		// than all scheduling.
		w.client = fake.NewSimpleClientset()
	}
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateAction)
		if create.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := create.GetObject().(*corev1.Binding)
		var taken error
		err := w.tryChange(binding.Name, func(pod *corev1.Pod) {
			if at := pod.Spec.NodeName; at != "" {
				if taken = apierrors.NewConflict(corev1.Resource("pods/binding"), pod.Name, fmt.Errorf("it is assigned to node %q", at)); !w.rivals.Load() {
					w.Error(taken)
				}
				return
			}
			pod.Spec.NodeName = binding.Target.Name
			for k, v := range binding.Annotations {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
			}
		})
		return true, binding, cmp.Or(taken, err)
	})
	// The tracker reads, patches and writes; no other write may come in between.
	patch := clienttesting.ObjectReaction(w.client.Tracker())
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.writes.Lock()
		defer w.writes.Unlock()
		newer, err := w.newer(action.(clienttesting.PatchActionImpl))
		if err != nil {
			return true, nil, err
		}
		return patch(newer)
	})
	for _, node := range nodes {
		w.add(node)
	}
	return w
}

// newer gives what a patch writes a version of its own, as an API server does: an informer
// takes an object of the same version for the same object.
func (w *cluster) newer(patch clienttesting.PatchActionImpl) (clienttesting.PatchActionImpl, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch.Patch, &fields); err != nil {
		return patch, err
	}
	if err := unstructured.SetNestedField(fields, strconv.FormatInt(w.version.Add(1), 10), "metadata", "resourceVersion"); err != nil {
		return patch, err
	}
	var err error
	patch.Patch, err = json.Marshal(fields)
	return patch, err
}

// schedule runs a scheduler on the cluster.
func (w *cluster) schedule(c *config.KubeSchedulerConfiguration) {
	w.Helper()
	ctx, stop := context.WithCancel(context.Background())
	factory := kube.NewInformerFactory(w.client, 0, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: w.client.EventsV1()})
	w.registry = metrics.NewKubeRegistry()
	queue := &plugin.Queue{}
	var own *plugin.Plugin
	create := plugin.Factory(slog.New(slog.DiscardHandler), w.registry.Registerer(), nil, queue)
	s, err := kube.New(ctx, w.client, factory, nil, profile.NewRecorderFactory(broadcaster),
		kube.WithProfiles(c.Profiles...), kube.WithComponentConfigVersion(c.APIVersion),
		kube.WithPodInitialBackoffSeconds(1), kube.WithPodMaxBackoffSeconds(1),
		kube.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			plugin.QueueName: queue.Factory,
			plugin.Name: func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
				made, err := create(ctx, args, h)
				if err == nil {
					own = made.(*plugin.Plugin)
					w.plugin = own
				}
				return made, err
			},
		}))
	if err != nil {
		w.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		w.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		stop()
		<-done
		if own != nil {
			_ = own.Close()
		}
		factory.Shutdown()
		broadcaster.Shutdown()
	})
	w.Cleanup(w.stop)
}

func (w *cluster) add(object runtime.Object) {
	w.Helper()
	if err := w.client.Tracker().Add(object); err != nil {
		w.Fatal(err)
	}
}

func (w *cluster) change(pod string, how func(*corev1.Pod)) {
	w.Helper()
	if err := w.tryChange(pod, how); err != nil {
		w.Error(err)
	}
}

func (w *cluster) tryChange(pod string, how func(*corev1.Pod)) error {
	w.writes.Lock()
	defer w.writes.Unlock()
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	object, err := w.client.Tracker().Get(gvr, "default", pod)
	if err != nil {
		return err
	}
	changed := object.(*corev1.Pod).DeepCopy()
	how(changed)
	// An informer takes an object of the same version for the same object.
	changed.ResourceVersion = strconv.FormatInt(w.version.Add(1), 10)
	return w.client.Tracker().Update(gvr, changed, "default")
}

func (w *cluster) delete(pod string) {
	w.Helper()
	if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", pod); err != nil {
		w.Error(err)
	}
}

func (w *cluster) pods() map[string]*corev1.Pod {
	list, err := w.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "default")
	if err != nil {
		w.Fatal(err)
	}
	pods := map[string]*corev1.Pod{}
	for _, pod := range list.(*corev1.PodList).Items {
		pods[pod.Name] = pod.DeepCopy()
	}
	return pods
}

// until waits for a state of the pods.
func (w *cluster) until(what string, ok func(map[string]*corev1.Pod) bool) map[string]*corev1.Pod {
	w.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		pods := w.pods()
		if ok(pods) {
			return pods
		}
		select {
		case <-deadline:
			var lines []string
			for name, pod := range pods {
				lines = append(lines, fmt.Sprintf("%s %v on %q, nominated %q: %s", name, pod.Labels, pod.Spec.NodeName, pod.Status.NominatedNodeName, why(pod)))
			}
			w.Fatalf("not %s:\n%s", what, strings.Join(lines, "\n"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func why(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Message
		}
	}
	return ""
}

func bound(pods map[string]*corev1.Pod, prefix string) (n int) {
	for name, pod := range pods {
		if strings.HasPrefix(name, prefix) && pod.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

func node(name string, gpus int) *corev1.Node {
	list := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("110"), gpu: *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: list, Allocatable: list,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func pod(name string, gpus int, labels map[string]string) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	if gpus > 0 {
		list[gpu] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: uuid.NewUUID(), Labels: labels, CreationTimestamp: metav1.Now(),
		},
		Spec: corev1.PodSpec{
			SchedulerName: "heddle-scheduler", Priority: new(int32),
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func gangLabels(name string, least int) map[string]string {
	return map[string]string{
		"pod-group.scheduling.sigs.k8s.io/name": name, "pod-group.scheduling.sigs.k8s.io/min-available": strconv.Itoa(least),
	}
}

func args(more string) string {
	if more == "" {
		return `{"topoMaster": ""}`
	}
	return `{"topoMaster": "", ` + more + `}`
}

// seen waits until the scheduler's caches are as new as the API server.
func (w *cluster) seen() { <-time.After(100 * time.Millisecond) }

// gang adds the pods of a gang.
func (w *cluster) gang(name string, n, gpus, least int) {
	w.Helper()
	for i := range n {
		w.add(pod(fmt.Sprintf("%s-%d", name, i), gpus, gangLabels(name, least)))
	}
}

// whole waits until n members of a gang run.
func (w *cluster) whole(gang string, n int) map[string]*corev1.Pod {
	w.Helper()
	return w.until(gang+" is whole", func(pods map[string]*corev1.Pod) bool { return bound(pods, gang) == n })
}
