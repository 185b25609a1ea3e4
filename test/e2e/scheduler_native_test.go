//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

// withGates is a cluster of its own whose control plane has Kubernetes' own
// gangs. The shared one has Kubernetes' defaults, as clusters have where all
// other tests are.
func withGates(t *testing.T) *bed {
	t.Helper()
	return ownBed(t, cluster.Options{
		Name:          "e2e-native",
		FeatureGates:  map[string]bool{"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true},
		APIServerArgs: []string{"--runtime-config=scheduling.k8s.io/v1beta1=true"},
	})
}

// nativeGroup makes a PodGroup of scheduling.k8s.io and its pods.
func (f *fleet) nativeGroup(t *testing.T, name string, n, gpus int, annotations map[string]string) {
	t.Helper()
	f.nativePods(t, name, n, annotations, func(p string) *corev1.Pod { return f.pod(p, gpus, nil) })
}

// nativePods makes a PodGroup of scheduling.k8s.io with pods that a function makes.
func (f *fleet) nativePods(t *testing.T, name string, n int, annotations map[string]string, pod func(string) *corev1.Pod) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
		"metadata": map[string]any{"name": name, "namespace": f.namespace, "annotations": annotations},
		"spec":     map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": n}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Apply(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		p := pod(fmt.Sprintf("%s-%d", name, i))
		p.Spec.SchedulerName, p.Spec.SchedulingGroup = schedulerName, &corev1.PodSchedulingGroup{PodGroupName: &name}
		f.create(t, p)
	}
}

// scheduled is what the PodGroup itself shows.
func (f *fleet) scheduled(t *testing.T, name string) string {
	t.Helper()
	return f.kubectl(t, "-n", f.namespace, "get", "podgroups.v1beta1.scheduling.k8s.io", name, "-o",
		`jsonpath={.status.conditions[?(@.type=="PodGroupInitiallyScheduled")].status} `+
			`{.status.conditions[?(@.type=="PodGroupInitiallyScheduled")].message}`)
}

// TestNativePodGroups places gangs of Kubernetes' own API by the map of a real
// topo-master: each in the tightest leaf that holds it, or not at all, and by the
// flags and the configuration of the chart.
func TestNativePodGroups(t *testing.T) {
	f := newFleetOn(t, withGates(t), "gpuScheduler.genericWorkload=true", "gpuScheduler.map.interval=500ms",
		"gpuScheduler.map.address=http://127.0.0.1:19421/node_group", "gpuScheduler.map.without=wait")
	at := f.leaves(t, 19421, map[string][]string{leafA: numbered("native-a", 4), leafB: numbered("native-b", 3)})
	used := map[string]string{}
	for _, tt := range []struct {
		gang string
		n    int
		leaf string
	}{{"three", 3, leafB}, {"four", 4, leafA}} {
		f.nativeGroup(t, tt.gang, tt.n, 8, map[string]string{"heddle.dev/gang-required-level": "leaf"})
		for node := range f.running(t, tt.gang, tt.n) {
			if used[node] != "" || at[node] != tt.leaf {
				t.Errorf("%s is on %s of %s, where %q is", tt.gang, node, at[node], used[node])
			}
			used[node] = tt.gang
		}
		eventually(t, func() string {
			if got := f.scheduled(t, tt.gang); !strings.HasPrefix(got, "True") {
				return tt.gang + " shows " + got
			}
			return ""
		})
	}
	f.nativeGroup(t, "more", 2, 8, nil)
	t.Log(f.rejected(t, "more", 2, "rejected by podgroup more: none of 2 fits"))
	if got := f.scheduled(t, "more"); !strings.HasPrefix(got, "False rejected by podgroup more") {
		t.Errorf("the PodGroup shows %q", got)
	}
	// One GPU node is no room for two; two are.
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "three-0", "three-1", "--force", "--grace-period=0")
	f.running(t, "more", 2)
	if n := len(f.podsOf(t, "three")); n != 1 {
		t.Errorf("three has %d pods", n)
	}
}

// TestCompositePodGroup places the PodGroups of a composite on one spine by the map's labels, each in one leaf.
func TestCompositePodGroup(t *testing.T) {
	f := idleFleet(t, ownBed(t, cluster.Options{
		Name: "e2e-composite",
		FeatureGates: map[string]bool{
			"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true, "CompositePodGroup": true,
		},
		APIServerArgs: []string{"--runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true"},
	}), "gpuScheduler.genericWorkload=true", "gpuScheduler.map.address=")
	f.flags = append(f.flags, "--feature-gates=CompositePodGroup=true")
	const leafLabel, spineLabel = wellknown.TopologyPrefix + "leaf", wellknown.TopologyPrefix + "spine"
	leaf, spine := map[string]string{}, map[string]string{}
	for i := range 6 { // Spine 0 has one leaf, spine 1 two.
		n := withGPUs(fmt.Sprint("composite-", i), 8, nil)
		leaf[n.Name], spine[n.Name] = fmt.Sprint("leaf-", i/2), fmt.Sprint("spine-", min(i/2, 1))
		n.Labels = map[string]string{leafLabel: leaf[n.Name], spineLabel: spine[n.Name]}
		f.nodes(t, n)
	}
	f.start(t)
	for _, tt := range []struct{ name, label, rejected string }{
		{"x", spineLabel, ""},
		{"y", spineLabel, "rejected by podgroup y: " + spineLabel + " spine-"},
		{"z", "example.com/none", "rejected by podgroup z: no node has the label example.com/none"},
	} {
		objects := []map[string]any{{
			"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup",
			"metadata": map[string]any{"name": tt.name, "namespace": f.namespace},
			"spec": map[string]any{
				"workloadRef":           map[string]any{"workloadName": tt.name, "templateName": "all"},
				"schedulingPolicy":      map[string]any{"gang": map[string]any{"minGroupCount": 2}},
				"schedulingConstraints": map[string]any{"topology": []any{map[string]any{"key": tt.label}}},
			},
		}}
		for _, child := range []string{"a", "b"} {
			objects = append(objects, map[string]any{
				"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
				"metadata": map[string]any{"name": tt.name + "-" + child, "namespace": f.namespace},
				"spec": map[string]any{
					"parentCompositePodGroupName": tt.name,
					"workloadRef":                 map[string]any{"workloadName": tt.name, "templateName": child},
					"schedulingPolicy":            map[string]any{"gang": map[string]any{"minCount": 2}},
					"schedulingConstraints":       map[string]any{"topology": []any{map[string]any{"key": leafLabel}}},
				},
			})
		}
		for _, o := range objects {
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Apply(t.Context(), string(text)); err != nil {
				t.Fatal(err)
			}
		}
		for _, child := range []string{"a", "b"} {
			for i := range 2 {
				group := tt.name + "-" + child
				p := f.pod(fmt.Sprintf("%s-%d", group, i), 8, nil)
				p.Spec.SchedulerName, p.Spec.SchedulingGroup = schedulerName, &corev1.PodSchedulingGroup{PodGroupName: &group}
				f.create(t, p)
			}
		}
		if tt.rejected != "" {
			t.Log(f.rejected(t, tt.name, 4, tt.rejected))
			continue
		}
		in := map[string]bool{}
		for node := range f.running(t, tt.name, 4) {
			in[spine[node]] = true
		}
		for _, child := range []string{"a", "b"} {
			for node := range f.running(t, tt.name+"-"+child, 2) {
				in[child+" "+leaf[node]] = true
			}
		}
		if len(in) != 3 {
			t.Errorf("%s is in %v", tt.name, in)
		}
	}
}

// TestNativePodGroupsOfClaims is for PodGroups of Kubernetes' own API with claims: of each pod, and one of all pods, which
// DynamicResources allocates with the first.
func TestNativePodGroupsOfClaims(t *testing.T) {
	f := newFleetOn(t, withGates(t), "gpuScheduler.genericWorkload=true")
	f.claimClasses(t)
	f.claimable(t, "native-c0", "native-c1")
	f.template(t, "all", claims.ClassPair, 8)
	own := func(name string) *corev1.Pod { return claiming(f.pod(name, 0, nil), "all") }
	f.nativePods(t, "three", 3, nil, own)
	t.Log(f.rejected(t, "three", 3, "rejected by podgroup three: 2 of 3 fit"))
	if n := f.allocated(t); n != 0 {
		t.Errorf("%d claims have devices", n)
	}
	f.nativePods(t, "two", 2, nil, own)
	if on := f.running(t, "two", 2); len(on) != 2 {
		t.Errorf("the group is on %v", on)
	}
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "two-0", "two-1", "three-0", "three-1", "three-2", "--force", "--grace-period=0")
	f.claim(t, "shared", claims.ClassGPU, 8)
	f.nativePods(t, "sharers", 3, nil, func(name string) *corev1.Pod { return sharing(f.pod(name, 0, nil), "shared") })
	if on := f.running(t, "sharers", 3); len(on) != 1 {
		t.Errorf("the pods of one claim are on %v", on)
	}
}
