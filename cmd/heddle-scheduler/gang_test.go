package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	kube "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/heddle-dev/heddle/topo/scheduler"
)

const gpu = "nvidia.com/gpu"

// world is the whole scheduler on an API server that is a map in memory.
type world struct {
	testing.TB
	client *fake.Clientset
	plugin *scheduler.Plugin
	stop   func()
	// registry has the plugin's metrics.
	registry *prometheus.Registry
	// version is the last resourceVersion that the test gave out.
	version atomic.Int64
	writes  sync.Mutex
}

// start runs the scheduler with the documented configuration, and with what the
// test wants of the plugin's arguments.
func start(tb testing.TB, args string, nodes ...*corev1.Node) *world {
	tb.Helper()
	return startFrom(tb, documented, args, nodes...)
}

func startFrom(tb testing.TB, file, args string, nodes ...*corev1.Node) *world {
	tb.Helper()
	c := loaded(tb, file)
	for i := range c.Profiles[0].PluginConfig {
		if c.Profiles[0].PluginConfig[i].Name == scheduler.Name {
			c.Profiles[0].PluginConfig[i].Args = &runtime.Unknown{Raw: []byte(args), ContentType: runtime.ContentTypeJSON}
		}
	}
	return startAs(tb, c, nodes...)
}

// startAs runs the scheduler with any configuration.
func startAs(tb testing.TB, c *config.KubeSchedulerConfiguration, nodes ...*corev1.Node) *world {
	tb.Helper()
	w := &world{TB: tb, client: fake.NewClientset(), registry: prometheus.NewRegistry()}
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
		w.change(binding.Name, func(pod *corev1.Pod) {
			if pod.Spec.NodeName != "" {
				w.Errorf("pod %s is bound twice", pod.Name)
			}
			pod.Spec.NodeName = binding.Target.Name
			for k, v := range binding.Annotations {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
			}
		})
		return true, binding, nil
	})
	// The tracker reads, patches and writes; nobody may write in between.
	patch := clienttesting.ObjectReaction(w.client.Tracker())
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.writes.Lock()
		defer w.writes.Unlock()
		return patch(action)
	})
	for _, node := range nodes {
		w.add(node)
	}
	ctx, stop := context.WithCancel(context.Background())
	factory := kube.NewInformerFactory(w.client, 0, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: w.client.EventsV1()})
	create := scheduler.Factory(slog.New(slog.DiscardHandler), scheduler.WithMetrics(w.registry))
	s, err := kube.New(ctx, w.client, factory, nil, profile.NewRecorderFactory(broadcaster),
		kube.WithProfiles(c.Profiles...), kube.WithComponentConfigVersion(c.APIVersion),
		kube.WithPodInitialBackoffSeconds(1), kube.WithPodMaxBackoffSeconds(1),
		kube.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			scheduler.Name: func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
				plugin, err := create(ctx, args, h)
				if err == nil {
					w.plugin = plugin.(*scheduler.Plugin)
				}
				return plugin, err
			},
		}))
	if err != nil {
		tb.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		stop()
		<-done
		if w.plugin != nil {
			_ = w.plugin.Close()
		}
		factory.Shutdown()
		broadcaster.Shutdown()
	})
	tb.Cleanup(w.stop)
	return w
}

func (w *world) add(object runtime.Object) {
	w.Helper()
	if err := w.client.Tracker().Add(object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) change(pod string, how func(*corev1.Pod)) {
	w.writes.Lock()
	defer w.writes.Unlock()
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	object, err := w.client.Tracker().Get(gvr, "default", pod)
	if err != nil {
		w.Error(err)
		return
	}
	changed := object.(*corev1.Pod).DeepCopy()
	how(changed)
	// An informer takes an object of the same version for the same object.
	changed.ResourceVersion = strconv.FormatInt(w.version.Add(1), 10)
	if err := w.client.Tracker().Update(gvr, changed, "default"); err != nil {
		w.Error(err)
	}
}

func (w *world) delete(pod string) {
	w.Helper()
	if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", pod); err != nil {
		w.Error(err)
	}
}

func (w *world) pods() map[string]*corev1.Pod {
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
func (w *world) until(what string, ok func(map[string]*corev1.Pod) bool) map[string]*corev1.Pod {
	w.Helper()
	deadline := time.After(20 * time.Second)
	for {
		pods := w.pods()
		if ok(pods) {
			return pods
		}
		select {
		case <-deadline:
			var lines []string
			for name, pod := range pods {
				lines = append(lines, fmt.Sprintf("%s %v on %q: %s", name, pod.Labels, pod.Spec.NodeName, why(pod)))
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

// The documented example: one PS and four workers of two GPUs each, of which a
// cluster of four GPUs could run three pods, and would hold them idle.
func TestTensorFlowExample(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	labels := func(task, index string) map[string]string {
		l := gangLabels("tf-smoke-gpu", 5)
		l["training.kubeflow.org/replica-type"], l["training.kubeflow.org/replica-index"] = task, index
		return l
	}
	w.add(pod("tf-smoke-gpu-ps-0", 0, labels("ps", "0")))
	for i := range 4 {
		w.add(pod(fmt.Sprintf("tf-smoke-gpu-worker-%d", i), 2, labels("worker", strconv.Itoa(i))))
	}
	pods := w.until("all five refused", func(pods map[string]*corev1.Pod) bool {
		for _, p := range pods {
			if !strings.Contains(why(p), "rejected by podgroup tf-smoke-gpu") {
				return false
			}
		}
		return len(pods) == 5
	})
	if n := bound(pods, "tf"); n > 0 {
		t.Errorf("%d pods have a node", n)
	}
	t.Log(why(pods["tf-smoke-gpu-worker-3"]))
	w.add(node("b", 4))
	pods = w.until("all five bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "tf") == 5 })
	on := map[string]int{}
	for name, p := range pods {
		if strings.Contains(name, "worker") {
			on[p.Spec.NodeName]++
		}
	}
	if on["a"] != 2 || on["b"] != 2 {
		t.Errorf("workers are on %v", on)
	}
}

func TestTwoGangsThatEachCouldHoldHalf(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4))
	// Interleaved, as two jobs come that start at once.
	for i := range 6 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 6)))
		w.add(pod(fmt.Sprintf("y-%d", i), 1, gangLabels("y", 6)))
	}
	pods := w.until("one of two gangs bound", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x")+bound(pods, "y") >= 6
	})
	first, second := "x", "y"
	if bound(pods, "y") > 0 {
		first, second = "y", "x"
	}
	if bound(pods, first) != 6 || bound(pods, second) != 0 {
		t.Errorf("x has %d and y has %d", bound(pods, "x"), bound(pods, "y"))
	}
	w.until("the other refused", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods[second+"-0"]), "rejected by podgroup "+second)
	})
	for i := range 6 {
		w.delete(fmt.Sprintf("%s-%d", first, i))
	}
	w.until("the other bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, second) == 6 })
}

func TestIncompleteGangWaitsAndDisturbsNobody(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	for i := range 3 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4)))
	}
	w.add(pod("plain", 1, nil))
	pods := w.until("the plain pod bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "plain") == 1 })
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d of an incomplete gang have a node", n)
	}
	w.delete("plain")
	w.add(pod("x-3", 1, gangLabels("x", 4)))
	w.until("the gang bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
}

func TestGangsOfAGroupRunTogetherOrNotAtAll(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	groups := func(p *corev1.Pod) *corev1.Pod {
		p.Annotations = map[string]string{"pod-group.scheduling.sigs.k8s.io/groups": `["default/actors", "default/learners"]`}
		return p
	}
	for i := range 2 {
		w.add(groups(pod(fmt.Sprintf("actor-%d", i), 1, gangLabels("actors", 2))))
	}
	for i := range 3 {
		w.add(groups(pod(fmt.Sprintf("learner-%d", i), 1, gangLabels("learners", 3))))
	}
	pods := w.until("both refused", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["actor-0"]), "rejected by") && strings.Contains(why(pods["learner-0"]), "rejected by")
	})
	t.Log(why(pods["actor-0"]))
	if n := bound(pods, ""); n > 0 {
		t.Errorf("%d pods have a node", n)
	}
	w.add(node("b", 1))
	w.until("both bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "") == 5 })
}

func TestContradictionIsToldOnEachPod(t *testing.T) {
	w := start(t, args(""), node("a", 8))
	w.add(pod("x-0", 1, gangLabels("x", 2)))
	w.add(pod("x-1", 1, gangLabels("x", 3)))
	w.until("refused with the reason", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["x-0"]), "min-available: its members say") && strings.Contains(why(pods["x-1"]), "min-available: its members say")
	})
	w.change("x-1", func(p *corev1.Pod) { p.Labels = gangLabels("x", 2) })
	w.until("bound once mended", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 2 })
}

func TestDeadlineFreesEverything(t *testing.T) {
	w := start(t, args(""), node("a", 2), node("b", 2))
	// A node that turns a member away for what no plan sees: a pod that must
	// not be beside it.
	guard := pod("guard", 0, map[string]string{"app": "guard"})
	guard.Spec.NodeName = "b"
	w.add(guard)
	for i := range 4 {
		p := pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4))
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}, TopologyKey: corev1.LabelHostname,
		}}}}
		w.add(p)
	}
	pods := w.until("refused", func(pods map[string]*corev1.Pod) bool {
		for name, p := range pods {
			if name != "guard" && !strings.Contains(why(p), "rejected by podgroup x") {
				return false
			}
		}
		return true
	})
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d pods have a node", n)
	}
	t.Log(why(pods["x-0"]))
	w.add(pod("plain-0", 2, nil))
	w.until("the room is free", func(pods map[string]*corev1.Pod) bool { return bound(pods, "plain") == 1 })
	w.delete("plain-0")
	w.delete("guard")
	w.until("the gang bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
}

func TestNoVictimsForHalfAGang(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4))
	for i := range 2 {
		w.add(pod(fmt.Sprintf("low-%d", i), 4, nil))
	}
	w.until("low pods bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "low") == 2 })
	high := int32(1000)
	for i := range 3 {
		p := pod(fmt.Sprintf("x-%d", i), 4, gangLabels("x", 3))
		p.Spec.Priority = &high
		w.add(p)
	}
	w.until("refused", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["x-2"]), "rejected by podgroup x")
	})
	if n := bound(w.pods(), "low"); n != 2 {
		t.Errorf("%d of 2 low pods are left", n)
	}
	w.delete("x-2")
	for i := range 2 {
		w.change(fmt.Sprintf("x-%d", i), func(p *corev1.Pod) { p.Labels = gangLabels("x", 2) })
	}
	w.until("the gang bound once it fits by preemption", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x") == 2 && bound(pods, "low") == 0
	})
}

// Of nodes that take as many members those with the fewest GPUs left get them:
// the other one stays whole for who asks for three.
func TestGangsLeaveLargerNodesWhole(t *testing.T) {
	w := start(t, args(""), node("a", 3), node("b", 2), node("c", 2))
	for i := range 2 {
		w.add(pod(fmt.Sprintf("g-%d", i), 2, gangLabels("g", 2)))
	}
	pods := w.until("both bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "g") == 2 })
	if at := pods["g-0"].Spec.NodeName + pods["g-1"].Spec.NodeName; at != "bc" && at != "cb" {
		t.Errorf("they are on %q", at)
	}
}

func TestRecreatedMemberFindsItsGang(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	for i := range 4 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4)))
	}
	w.until("bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
	w.delete("x-2")
	w.add(pod("x-2", 1, gangLabels("x", 4)))
	w.until("bound again", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
}
