package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	schedulingv1beta1 "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	"volcano.sh/volcano/pkg/scheduler"
	"volcano.sh/volcano/pkg/scheduler/api"
	"volcano.sh/volcano/pkg/scheduler/framework"
	"volcano.sh/volcano/pkg/scheduler/uthelper"
	"volcano.sh/volcano/pkg/scheduler/util"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

const size = "nvidia.com/gpu-group-size"

// groups are dragonflies of so many nodes in a switchbox: a0, a1, ..., b0, ...
func groups(sizes ...int) []v1alpha1.Group {
	box := v1alpha1.Group{Name: "box", Kind: "switchbox", Status: v1alpha1.StatusReady}
	for i, n := range sizes {
		letter := string(rune('a' + i))
		g := v1alpha1.Group{Name: "dragonfly-" + letter, Kind: "dragonfly", Status: v1alpha1.StatusReady}
		for k := range n {
			g.Child = append(g.Child, v1alpha1.Group{
				Name: fmt.Sprint(letter, k), Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady,
			})
		}
		box.Child = append(box.Child, g)
	}
	return []v1alpha1.Group{box}
}

// served is a plugin with a topo-master that answers GET /node_group, and has; nil is
// one that does not.
func served(t *testing.T, tree []v1alpha1.Group) (framework.PluginBuilder, framework.Arguments) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tree == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(tree)
	}))
	t.Cleanup(server.Close)
	var m topologyMap
	build := m.builder(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	arguments := framework.Arguments{"map.address": server.URL + "/node_group"}
	build(arguments)
	for answer, _ := m.client.Current(); tree != nil && answer.Generation == 0; answer, _ = m.client.Current() {
		<-time.After(time.Millisecond)
	}
	return build, arguments
}

// runSession is a session with the documented configuration for super-nodes, and with the
// plugin's arguments.
func runSession(t *testing.T, tree []v1alpha1.Group, test *uthelper.TestCommonStruct) *framework.Session {
	t.Helper()
	text, err := os.ReadFile("../../deploy/examples/volcano-scheduler-conf.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	actions, tiers, configurations, _, err := scheduler.UnmarshalSchedulerConf(first)
	if err != nil {
		t.Fatal(err)
	}
	build, arguments := served(t, tree)
	test.Plugins = map[string]framework.PluginBuilder{}
	for _, tier := range tiers {
		for i := range tier.Plugins {
			name := tier.Plugins[i].Name
			if name == podAffinityName {
				tier.Plugins[i].Arguments = arguments
				test.Plugins[name] = build
				continue
			}
			builder, ok := framework.GetPluginBuilder(name)
			if !ok {
				t.Fatalf("no plugin %s", name)
			}
			test.Plugins[name] = builder
		}
	}
	session := test.RegisterSession(tiers, configurations)
	t.Cleanup(func() {
		test.Close() // This unregisters Volcano's own plugins.
		uthelper.RegisterPlugins(test.Plugins)
	})
	test.Run(actions)
	return session
}

// workload is a Volcano job with a master and workers of eight GPUs.
type workload struct {
	name        string
	pods        int
	annotations map[string]string // of the master
	bound       map[int]string
	gpu         corev1.ResourceName // nvidia.com/gpu by default
}

// compare looks at the nodes of the pods in the order of ranks.
func compare(t *testing.T, session *framework.Session, want map[string]string, reason string) {
	t.Helper()
	got := map[string]string{}
	for _, j := range session.Jobs {
		var nodes []string
		for _, task := range ordered(j) {
			nodes = append(nodes, task.NodeName)
		}
		got[j.Name] = strings.TrimSpace(strings.Join(nodes, " "))
		for _, errs := range j.NodesFitErrors {
			// Volcano tries one pod of each role.
			if text := errs.Error(); reason == "" || !strings.Contains(text, reason) && !strings.Contains(text, "already predicated") {
				t.Errorf("%s waits: %s", j.Name, errs.Error())
			}
		}
		if reason != "" && len(j.NodesFitErrors) == 0 {
			t.Errorf("%s gives no reason", j.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func (w workload) resource() corev1.ResourceName {
	if w.gpu == "" {
		return "nvidia.com/gpu"
	}
	return w.gpu
}

func (w workload) add(test *uthelper.TestCommonStruct) {
	group := util.BuildPodGroup(w.name, "ml", "default", int32(w.pods), nil, schedulingv1beta1.PodGroupPending)
	test.PodGroups = append(test.PodGroups, group)
	for i := range w.pods {
		role, index := "worker", i-1
		if i == 0 {
			role, index = "master", 0
		}
		phase := corev1.PodPending
		if w.bound[i] != "" {
			phase = corev1.PodRunning
		}
		pod := util.BuildPod("ml", fmt.Sprintf("%s-%s-%d", w.name, role, index), w.bound[i], phase,
			corev1.ResourceList{w.resource(): resource.MustParse("8")}, w.name,
			map[string]string{}, nil)
		pod.Annotations["volcano.sh/task-spec"] = role
		if i == 0 {
			maps.Copy(pod.Annotations, w.annotations)
		}
		test.Pods = append(test.Pods, pod)
	}
}

// Without a map a job of super-nodes waits, and no other.
func TestWaitsForTheMap(t *testing.T) {
	for _, tt := range []struct{ name, annotation, want, reason string }{
		{"a job of super-nodes", "8", "", "waits for the topology from topo-master"},
		{"another job", "", "a0", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test := &uthelper.TestCommonStruct{Queues: []*schedulingv1beta1.Queue{util.BuildQueue("default", 1, nil)}}
			test.Nodes = append(test.Nodes, simulated("a0"))
			annotations := map[string]string{}
			if tt.annotation != "" {
				annotations[size] = tt.annotation
			}
			workload{name: "one", pods: 1, annotations: annotations}.add(test)
			compare(t, runSession(t, nil, test), map[string]string{"one": tt.want}, tt.reason)
		})
	}
}

// simulated is a node with eight GPUs.
func simulated(name string) *corev1.Node {
	return util.BuildNode(name, api.BuildResourceList("64", "256Gi", []api.ScalarResource{
		{Name: "pods", Value: "110"}, {Name: "nvidia.com/gpu", Value: "8"},
	}...), map[string]string{})
}

func TestSuperNodes(t *testing.T) {
	one := map[string]string{size: "64"}
	for _, tt := range []struct {
		name string
		tree []v1alpha1.Group
		jobs []workload
		node func(*corev1.Node)
		// want are the nodes of the job's pods in the order of ranks, blank for none.
		want map[string]string
		// reason is part of why pods have no node.
		reason string
	}{
		{
			name: "a job in the only super-node that holds it", tree: groups(6, 9, 7),
			jobs: []workload{{name: "pytorch-demo", pods: 8, annotations: one}},
			want: map[string]string{"pytorch-demo": "b0 b1 b2 b3 b4 b5 b6 b7"},
		},
		{
			name: "a job that no super-node holds has no pod", tree: groups(6, 7, 7),
			jobs: []workload{{name: "pytorch-demo", pods: 8, annotations: one}}, want: map[string]string{"pytorch-demo": ""},
			reason: "super-nodes of 64 GPUs: ",
		},
		{
			name: "a job after another", tree: groups(8, 8),
			jobs: []workload{{name: "first", pods: 8, annotations: one}, {name: "second", pods: 8, annotations: one}},
			want: map[string]string{"first": "a0 a1 a2 a3 a4 a5 a6 a7", "second": "b0 b1 b2 b3 b4 b5 b6 b7"},
		},
		{
			name: "slices of consecutive ranks", tree: groups(3, 3, 5),
			jobs: []workload{{name: "slices", pods: 8, annotations: map[string]string{size: "16"}}},
			want: map[string]string{"slices": "a0 a1 b0 b1 c0 c1 c2 c3"},
		},
		{
			name: "a pod that is made again joins the others", tree: groups(4, 4),
			jobs: []workload{{name: "half", pods: 4, annotations: map[string]string{size: "32"}, bound: map[int]string{0: "b2", 1: "b0", 3: "b1"}}},
			want: map[string]string{"half": "b2 b0 b3 b1"},
		},
		{
			name: "nodes that other plugins reject do not count", tree: groups(8, 8),
			jobs: []workload{{name: "tainted", pods: 8, annotations: one}},
			node: func(n *corev1.Node) {
				if n.Name == "a3" {
					n.Spec.Taints = []corev1.Taint{{Key: "broken", Effect: corev1.TaintEffectNoSchedule}}
				}
			},
			want: map[string]string{"tainted": "b0 b1 b2 b3 b4 b5 b6 b7"},
		},
		{
			name: "another vendor's GPUs and spelling", tree: groups(6, 8),
			jobs: []workload{{
				name: "metax", pods: 8, gpu: "metax-tech.com/gpu",
				annotations: map[string]string{"metax-tech.com/gpu-group-size": "64"},
			}},
			node: func(n *corev1.Node) {
				for _, amounts := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
					delete(amounts, "nvidia.com/gpu")
					amounts["metax-tech.com/gpu"] = resource.MustParse("8")
				}
			},
			want: map[string]string{"metax": "b0 b1 b2 b3 b4 b5 b6 b7"},
		},
		{
			name: "what is no number is not guessed", tree: groups(8),
			jobs: []workload{{name: "slip", pods: 8, annotations: map[string]string{size: "64GB"}}}, want: map[string]string{"slip": ""},
			reason: `annotation nvidia.com/gpu-group-size: "64GB" is not 1 to 1048576`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test := &uthelper.TestCommonStruct{Queues: []*schedulingv1beta1.Queue{util.BuildQueue("default", 1, nil)}}
			for _, g := range tt.tree[0].Child {
				for _, n := range g.Child {
					node := simulated(n.Name)
					if tt.node != nil {
						tt.node(node)
					}
					test.Nodes = append(test.Nodes, node)
				}
			}
			for _, w := range tt.jobs {
				w.add(test)
			}
			compare(t, runSession(t, tt.tree, test), tt.want, tt.reason)
		})
	}
}
