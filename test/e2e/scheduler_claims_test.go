//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// claimClasses installs the chart's DeviceClasses.
func (f *fleet) claimClasses(t *testing.T) {
	t.Helper()
	text := f.helm(t, "template", "x", "deploy/helm/heddle", "-n", f.namespace,
		"-s", "templates/device-plugin/claims.yaml", "--set", "gpuDevice.claims.enabled=true,admissionPolicy.enabled=false")
	if err := f.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"gpu", "gpu-hca", "hca", "imex", "mig", "monitor", "sgpu"} {
		t.Cleanup(func() { f.kubectlAfter(t, "delete", "deviceclass", class+claims.ClassSuffix) })
	}
}

// claimable adds simulated nodes that offer no GPU to a kubelet and publish those of a DGX H100 for claims.
func (f *fleet) claimable(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		f.nodes(t, cluster.SimulatedNode{Name: name})
	}
	f.publish(t, names...)
}

// publish publishes the GPUs of a DGX H100 for claims, on each of some nodes.
func (f *fleet) publish(t *testing.T, names ...string) {
	t.Helper()
	c := config.Default()
	c.Mode = config.ModeClaims
	published := pool.Of(inventorytest.Configured(machines.Load(t, "dgx-h100"), &c)).Slices()
	api := f.client.ResourceV1().ResourceSlices()
	for _, name := range names {
		for i, s := range published {
			slice := &resourcev1.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, name)},
				Spec: resourcev1.ResourceSliceSpec{
					Driver: claims.Driver, NodeName: &name, Devices: s.Devices, SharedCounters: s.SharedCounters,
					Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(published))},
				},
			}
			if _, err := api.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), slice.Name, metav1.DeleteOptions{}) })
		}
	}
}

// A gang of manifests for device plugins gets GPUs by claims that the scheduler makes: all members or none, and those
// that wait go on once the claims of others are gone.
func TestGangOfClaims(t *testing.T) {
	f := newFleet(t)
	f.claimClasses(t)
	f.claimable(t, "claims-1", "claims-2", "claims-3")
	for i := range 2 {
		f.create(t, f.member("first", i, 2, 8, nil))
	}
	f.running(t, "first", 2)
	for i := range 2 {
		f.create(t, f.member("second", i, 2, 8, nil))
	}
	f.later(t, "later")
	if on := f.bound(t, "second"); len(on) != 0 {
		t.Errorf("members without room for all are on %v", on)
	}
	f.kubectl(t, "delete", "pod", "-n", f.namespace, "first-0", "first-1")
	f.running(t, "second", 2)
	nodes := map[string]bool{}
	for _, node := range f.bound(t, "second") {
		nodes[node] = true
	}
	if len(nodes) != 2 {
		t.Errorf("two members with all GPUs of a node are on %v", nodes)
	}
}

// template makes a template of claims with one request.
func (f *fleet) template(t *testing.T, name, class string, count int64, selectors ...string) {
	t.Helper()
	request := resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}
	for _, s := range selectors {
		request.Selectors = append(request.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: s}})
	}
	made := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.namespace}}
	made.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "devices", Exactly: &request}}
	if _, err := f.client.ResourceV1().ResourceClaimTemplates(f.namespace).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// claiming has a pod claim devices by a template.
func claiming(p *corev1.Pod, template string) *corev1.Pod {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &template}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
	return p
}

// claim makes a claim with one request.
func (f *fleet) claim(t *testing.T, name, class string, count int64) {
	t.Helper()
	made := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.namespace}}
	made.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "devices", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}}
	if _, err := f.client.ResourceV1().ResourceClaims(f.namespace).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// sharing has a pod use a claim that others use too.
func sharing(p *corev1.Pod, claim string) *corev1.Pod {
	p = claiming(p, "")
	p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "devices", ResourceClaimName: &claim}
	return p
}

// allocated returns how many claims of the namespace have devices.
func (f *fleet) allocated(t *testing.T) (n int) {
	t.Helper()
	list, err := f.client.ResourceV1().ResourceClaims(f.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Status.Allocation != nil {
			n++
		}
	}
	return n
}

// Of a gang of 16 with room for 15 no pod is bound and no claim has devices, and all get theirs once there is room. A
// gang with a selector that no device matches waits.
func TestGangOfOwnClaims(t *testing.T) {
	f := newFleet(t)
	f.claimClasses(t)
	f.claimable(t, "own-1", "own-2")
	f.template(t, "one", claims.ClassGPU, 1)
	f.template(t, "pair", claims.ClassPair, 1)
	f.template(t, "none", claims.ClassGPU, 1, "device.attributes['"+claims.Driver+"'].productName == 'none'")
	single := claiming(f.pod("single", 0, nil), "one")
	single.Spec.SchedulerName = schedulerName
	f.create(t, single)
	f.running(t, "single", 1)
	for i := range 16 {
		f.create(t, claiming(f.member("sixteen", i, 16, 0, nil), "pair"))
	}
	for i := range 2 {
		f.create(t, claiming(f.member("impossible", i, 2, 0, nil), "none"))
	}
	t.Log(f.rejected(t, "sixteen", 16, "rejected by podgroup sixteen: 15 of 16"))
	t.Log(f.rejected(t, "impossible", 2, "rejected by podgroup impossible: none of 2"))
	for gang, want := range map[string]string{
		"sixteen": "15 pods", "impossible": `claim "devices", request "devices": 0 of 8 devices match selector device.attributes[`,
	} {
		out, _ := f.laptop(t).run(t, "why", "-n", f.namespace, gang)
		if t.Log(out); !strings.Contains(out, want) {
			t.Errorf("heddle why %s lacks %s", gang, want)
		}
	}
	f.later(t, "later")
	if on, n := f.bound(t, "sixteen"), f.allocated(t); len(on) != 0 || n != 1 {
		t.Errorf("without room for all, members are on %v, and %d claims have devices", on, n)
	}
	f.kubectl(t, "delete", "pod", "-n", f.namespace, "single")
	if on := f.running(t, "sixteen", 16); on["own-1"] != 8 || on["own-2"] != 8 {
		t.Errorf("the gang is on %v", on)
	}
	if n := f.allocated(t); n != 16 {
		t.Errorf("%d claims have devices", n)
	}
}

// A claim that all members share and that has its GPUs is not counted for each, and keeps them on its node; one without
// GPUs is the gang's reason.
func TestGangOfOneClaim(t *testing.T) {
	f := newFleet(t)
	f.claimClasses(t)
	f.claimable(t, "shared-1", "shared-2")
	f.claim(t, "all", claims.ClassGPU, 8)
	for i := range 3 {
		f.create(t, sharing(f.member("sharers", i, 3, 0, nil), "all"))
	}
	t.Log(f.rejected(t, "sharers", 3, "share ResourceClaim all, which has no devices yet"))
	first := sharing(f.pod("first", 0, nil), "all")
	first.Spec.SchedulerName = schedulerName
	f.create(t, first)
	on := f.running(t, "first", 1)
	for node := range f.running(t, "sharers", 3) {
		if on[node] != 1 {
			t.Errorf("a member is on %s, the claim on %v", node, on)
		}
	}
}

// Of 300 pods with one IMEX channel 256 run, as many as Kubernetes lets use a claim, and the others say so. A gang
// of two more gets no node.
func TestChannelOfManyPods(t *testing.T) {
	f := newFleet(t)
	f.claimClasses(t)

	const cliqueLabel, clique = "nvidia.com/gpu.clique", "a84f3d2b-e94c-4ec2-bc97-30d8a143882d.7"
	for _, name := range []string{"channel-1", "channel-2"} {
		f.nodes(t, cluster.SimulatedNode{
			Name: name, Labels: map[string]string{cliqueLabel: clique}, Capacity: map[string]string{"cpu": "1k", "pods": "500"},
		})
	}
	channels, err := export.Channels([]string{clique}, cliqueLabel)
	if err != nil || len(channels) != 1 {
		t.Fatalf("%d pools, %v", len(channels), err)
	}
	text, err := json.Marshal(&channels[0])
	if err == nil {
		err = f.Apply(t.Context(), string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "resourceslice", channels[0].Metadata.Name) })
	f.claim(t, "channel", "imex"+claims.ClassSuffix, 1)
	const pods, most = 300, resourcev1.ResourceClaimReservedForMaxSize
	for i := range pods {
		p := sharing(f.pod(fmt.Sprint("many-", i), 0, nil), "channel")
		p.Spec.SchedulerName = schedulerName
		f.create(t, p)
	}
	rest := map[string]string{}
	eventually(t, func() string {
		clear(rest)
		running := 0
		for _, p := range f.podsOf(t, "many-") {
			if p.Spec.NodeName != "" {
				running++
			} else if why := whyNot(&p); strings.Contains(why, "256") {
				rest[p.Name] = why
			}
		}
		if running != most || len(rest) != pods-most {
			return fmt.Sprintf("%d pods have a node, and %d say why not", running, len(rest))
		}
		return ""
	})
	const want = "would be used by more than 256 pods"
	for name, why := range rest {
		t.Log(why)
		if out, _ := f.laptop(t).run(t, "why", "-n", f.namespace, name); !strings.Contains(out, want) {
			t.Errorf("heddle why %s: %s", name, out)
		}
		break
	}
	for i := range 2 {
		f.create(t, sharing(f.member("gang", i, 2, 0, nil), "channel"))
	}
	t.Log(f.rejected(t, "gang", 2, want))
}

// The example runs in one leaf group. Kubernetes' own scheduler gives the same claims GPUs in any.
func TestClaimGangInOneLeaf(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.interval=500ms", "gpuScheduler.map.address=http://127.0.0.1:19423/node_group",
		"gpuScheduler.map.without=wait")
	f.claimClasses(t)
	// Two nodes are in each leaf; a node takes two pods, and one of leaf A has room for one.
	names := []string{"leafy-a0", "leafy-b0", "leafy-a1", "leafy-b1"}
	at := f.leaves(t, 19423, map[string][]string{leafA: {names[0], names[2]}, leafB: {names[1], names[3]}})
	for _, name := range names {
		f.kubectl(t, "patch", "node", name, "--subresource=status", "--type=json", "-p",
			`[{"op": "remove", "path": "/status/capacity/nvidia.com~1gpu"}, {"op": "remove", "path": "/status/allocatable/nvidia.com~1gpu"}]`)
	}
	f.publish(t, names...)
	f.template(t, "four", claims.ClassPair, 4)
	busy := claiming(f.pod("busy", 0, nil), "four")
	busy.Spec.SchedulerName, busy.Spec.NodeSelector = schedulerName, map[string]string{corev1.LabelHostname: names[0]}
	f.create(t, busy)
	f.running(t, "busy", 1)
	leaves := func(prefix string) map[string]int {
		all := map[string]int{}
		eventually(t, func() string {
			on := f.bound(t, prefix)
			if len(on) != 4 {
				return fmt.Sprintf("%d of 4 pods have a node", len(on))
			}
			for _, node := range on {
				all[at[node]]++
			}
			return ""
		})
		return all
	}
	f.kubectl(t, "-n", f.namespace, "apply", "-f", f.example("claims/gang.yaml"))
	if got := leaves("claim-gang"); got[leafB] != 4 {
		t.Errorf("the gang is in the leaves %v", got)
	}
	f.kubectl(t, "-n", f.namespace, "delete", "job", "claim-gang", "--cascade=foreground")
	eventually(t, func() string {
		if n := f.allocated(t); n != 1 {
			return fmt.Sprintf("%d claims have devices", n)
		}
		return ""
	})
	for i := range 4 {
		f.create(t, claiming(f.pod(fmt.Sprint("default-", i), 0, nil), "four"))
	}
	t.Logf("kube-scheduler puts the same pods into the leaves %v", leaves("default"))
}
