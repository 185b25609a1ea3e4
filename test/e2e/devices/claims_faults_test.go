//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
)

// slices are the specs of the driver's ResourceSlices, and how often each was written, by name.
func (r *rig) slices(t *testing.T) (specs map[string]resourcev1.ResourceSliceSpec, writes map[string]int64) {
	t.Helper()
	list, err := r.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + r.Node(),
	})
	if err != nil {
		t.Fatal(err)
	}
	specs, writes = map[string]resourcev1.ResourceSliceSpec{}, map[string]int64{}
	for i := range list.Items {
		s := &list.Items[i]
		specs[s.Name], writes[s.Name] = s.Spec, s.Generation
	}
	return specs, writes
}

// claimLeft waits until the node has no record and no spec of a claim.
func (r *rig) claimLeft(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		specs, _ := filepath.Glob(filepath.Join(r.NodeDir("/var/run/cdi"), "heddle-claim-*"))
		records, _ := filepath.Glob(filepath.Join(r.stateDir(), "claims", "*"))
		if left := slices.Concat(specs, records); len(left) > 0 {
			return fmt.Sprintf("left: %v", left)
		}
		return ""
	})
}

// What another client does to slices is put right in one write of the pool, and a restart of the driver writes nothing.
func TestClaimsSlicesOfOthers(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "first", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("first", "first")) // All slices are there.
	want, before := r.slices(t)
	if err := r.plugin.stop(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.claim(t, "second", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("second", "second")) // The driver serves.
	if _, after := r.slices(t); !cmp.Equal(before, after) {
		t.Errorf("writes of slices at a restart (-before +after):\n%s", cmp.Diff(before, after))
	}
	names := sortedKeys(want)
	api := r.client.ResourceV1().ResourceSlices()
	if err := api.Delete(t.Context(), names[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	edited, err := api.Get(t.Context(), names[1], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	edited.Spec.Devices, edited.Spec.SharedCounters = nil, nil
	if _, err := api.Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	devices := func(of map[string]resourcev1.ResourceSliceSpec) (all []string) {
		for _, s := range of {
			for i := range s.Devices {
				all = append(all, s.Devices[i].Name)
			}
			for i := range s.SharedCounters {
				all = append(all, s.SharedCounters[i].Name)
			}
		}
		slices.Sort(all)
		return all
	}
	eventually(t, func() string {
		now, _ := r.slices(t)
		return cmp.Diff(devices(want), devices(now))
	})
	if _, writes := r.slices(t); writes[names[1]] > before[names[1]]+3 {
		t.Errorf("the slice was written %d times", writes[names[1]]-before[names[1]])
	}
}

// A fault and its end are one write each of one slice.
func TestClaimsWritesOfFaults(t *testing.T) {
	r := claimsRig(t)
	_, before := r.slices(t)
	health := r.machine(t)
	sick := r.machine(t)
	sick.GPUs[3].Health.State = "lost"
	if err := r.writeMachine(sick); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 7)
	if err := r.writeMachine(health); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 8)
	_, after := r.slices(t)
	var written []int64
	for name, n := range after {
		if n != before[name] {
			written = append(written, n-before[name])
		}
	}
	if !slices.Equal(written, []int64{2}) {
		t.Errorf("writes of slices that changed: %v, want two of one", written)
	}
}

// While the API server is away, pods with claims go on and start again; claims are prepared once it is back. The kubelet
// is killed while it prepares one.
func TestClaimsWithoutAPIServerAndKubelet(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "stays", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("stays", "stays"))
	before, _ := given(t, r.report(t, "stays", "app"))
	id := status(r.getPod(t, "stays"), "app").ContainerID
	s := &soak{rig: r}
	s.killComponent(t, "kube-apiserver")
	r.killContainer(t, id)
	if r.plugin.kill(t); r.plugin.start(r.ctx(t)) != nil {
		t.Fatal("the plugin does not start")
	}
	eventually(t, func() string {
		if specs, _ := filepath.Glob(filepath.Join(r.NodeDir("/var/run/cdi"), "heddle-claim-*")); len(specs) != 1 {
			return fmt.Sprintf("specs %v", specs)
		}
		return ""
	})
	s.startComponent(t, "kube-apiserver")
	r.waitRestart(t, "stays", 1)
	if after, _ := given(t, r.report(t, "stays", "app")); !slices.Equal(before, after) {
		t.Errorf("GPUs %v, and %v before", after, before)
	}

	r.claim(t, "next", exactly("gpu", "gpu.heddle.dev", 2))
	mark := r.plugin.log.mark()
	r.create(t, r.claimant("next", "next"))
	eventually(t, func() string {
		if !strings.Contains(r.plugin.log.since(mark), "claim=default/next") {
			return "the claim is not prepared"
		}
		return ""
	})
	s.killComponent(t, "kubelet")
	s.startComponent(t, "kubelet")
	r.waitReady(t, "next")
	if next, _ := given(t, r.report(t, "next", "app")); len(next) != 2 || slices.Contains(next, before[0]) {
		t.Errorf("GPUs %v", next)
	}
	r.remove(t, "next", "stays")
	r.claimLeft(t)
}

// The driver is away for so long that the kubelet deletes its slices: pods go on, and the slices are back with it.
func TestClaimsDriverAway(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "stays", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("stays", "stays"))
	before := status(r.getPod(t, "stays"), "app").ContainerID
	if err := r.plugin.stop(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if specs, _ := r.slices(t); len(specs) > 0 {
			return fmt.Sprintf("%d slices", len(specs))
		}
		return ""
	})
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 8)
	if after := status(r.getPod(t, "stays"), "app").ContainerID; after != before {
		t.Error("the container was started again")
	}
	r.claim(t, "rest", exactly("gpu", "gpu.heddle.dev", 7))
	r.run(t, r.claimant("rest", "rest"))
}

// A pod and its claim go and come back under their names: the new claim is another, and nothing is left of the old one.
func TestClaimsMadeAgain(t *testing.T) {
	r := claimsRig(t)
	for range 3 {
		t.Run("", func(t *testing.T) {
			r.claim(t, "again", exactly("gpu", "gpu.heddle.dev", 8))
			r.run(t, r.claimant("again", "again"))
			r.remove(t, "again")
		})
	}
	r.claimLeft(t)
}

// A GPU without its device node is tainted: no pod starts without its GPU.
func TestClaimsWithoutNodes(t *testing.T) {
	r := claimsRig(t)
	if err := r.plugin.stop(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(r.dir, "gpus", r.machine(t).GPUs[2].UUID)
	spec := filepath.Join(r.NodeDir("/var/run/cdi"), "driver.heddle.dev-gpu.json")
	if err := os.Rename(node, node+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Rename(node+".away", node) })
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 7)
	r.claim(t, "tolerant", resourcev1.DeviceRequest{Name: "gpus", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu.heddle.dev", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 8,
		Tolerations: []resourcev1.DeviceToleration{{Key: claims.TaintUnhealthy, Operator: resourcev1.DeviceTolerationOpExists}},
	}})
	r.create(t, r.claimant("tolerant", "tolerant"))
	r.waitEvent(t, "tolerant", "FailedPrepareDynamicResources", "has no GPU")
	if err := os.Rename(node+".away", node); err != nil {
		t.Fatal(err)
	}
	r.waitReady(t, "tolerant")
	r.waitClaimable(t, 8)
}

// A container uses one request of two, another both, and a third a second claim beside them: each sees exactly those.
func TestClaimsOfContainers(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "two", exactly("one", "gpu.heddle.dev", 1), exactly("three", "gpu.heddle.dev", 3))
	r.claim(t, "more", exactly("two", "gpu.heddle.dev", 2))
	p := r.claimant("parts", "two", "more")
	c := p.Spec.Containers[0]
	c.Resources.Claims = []corev1.ResourceClaim{{Name: "two", Request: "one"}}
	all, both := c, c
	all.Name, all.Resources.Claims = "all", []corev1.ResourceClaim{{Name: "two"}, {Name: "more"}}
	both.Name, both.Resources.Claims = "both", []corev1.ResourceClaim{{Name: "two"}}
	p.Spec.Containers = []corev1.Container{c, all, both}
	r.run(t, p)
	for container, want := range map[string]int{"app": 1, "both": 4, "all": 6} {
		seen := r.report(t, "parts", container)
		gpus, _ := given(t, seen)
		nodes := 0
		for path, answer := range seen.Open {
			if strings.HasPrefix(path, "/host/gpus/GPU-") && answer == "ENXIO" {
				nodes++
			}
		}
		if len(gpus) != want || nodes != want {
			t.Errorf("container %s is told of %d GPUs and opens %d, want %d", container, len(gpus), nodes, want)
		}
	}
}

// With the kubelet's topology manager, pods that request the extended resource run on claims, after the node was handed
// to claims.
func TestClaimsWithTopologyManager(t *testing.T) {
	r := newRig(t, options{name: "claims-numa", held: true, kubelet: map[string]any{
		"topologyManagerPolicy": "restricted", "topologyManagerScope": "container",
	}})
	r.twoNUMANodes(t, 1)
	if err := r.Apply(t.Context(), claimClasses()); err != nil {
		t.Fatal(err)
	}
	r.plugin.extra = []string{"--claims-dir", "/var/lib/kubelet/plugins/" + claims.Driver}
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, gpuResource, 8)
	r.run(t, r.pod("plugin", box{gpus: 2}))
	r.remove(t, "plugin")
	r.configure(t, claimedGPUs)
	r.waitClaimable(t, 8)
	r.waitAllocatable(t, gpuResource, 0)
	r.run(t, r.pod("claims", box{gpus: 6})) // More than a NUMA node has.
	if gpus, _ := given(t, r.report(t, "claims", "app")); len(gpus) != 6 {
		t.Errorf("GPUs %v", gpus)
	}
}

// Where an enforcer limits each container alone, a share by a claim goes to one container at a time: another one does
// not start, with the reason in its status, and does once the first has ended.
func TestClaimsShareAlone(t *testing.T) {
	r := claimsRig(t)
	r.mps(t)
	share := exactly("share", "sgpu.heddle.dev", 1)
	share.Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
		claims.CapacityVCore: resource.MustParse("30"), claims.CapacityVMemory: resource.MustParse("24Gi"),
	}}
	r.claim(t, "alone", share)
	r.run(t, r.claimant("first", "alone"))
	if env := r.report(t, "first", "app").Env; env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "30" {
		t.Errorf("the container's variables are %v", env)
	}
	r.create(t, r.claimant("second", "alone"))
	r.waitPod(t, "second", func(p *corev1.Pod) string {
		s := status(p, "app")
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			if state.Waiting != nil && strings.Contains(state.Waiting.Message, "another container has the share") ||
				state.Terminated != nil && strings.Contains(state.Terminated.Message, "another container has the share") {
				return ""
			}
		}
		return "its container is " + inShort(p)
	})
	r.remove(t, "first")
	r.waitReady(t, "second")
}

// mps runs the keeper of MPS daemons on the node with a stand-in for NVIDIA's program, which limits the shares of claims.
func (r *rig) mps(t *testing.T) {
	t.Helper()
	stand := filepath.Join(r.dir, "mpscontrol")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", stand, "github.com/heddle-dev/heddle/test/mpscontrol")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of the stand-in: %v\n%s", err, out)
	}
	// Both look for the program in /opt/bin, among others.
	under := []string{"unshare", "--mount", "sh", "-ec", "mount -t tmpfs none /opt; mkdir /opt/bin; " +
		"cp " + stand + " /opt/bin/nvidia-cuda-mps-control; exec \"$@\"", "sh"}
	keeper := r.another(t, r.plugin.binary, "mps", "--state-dir", r.stateDir())
	keeper.under = under
	was := *r.plugin
	again := func(ctx context.Context) {
		if err := errors.Join(r.plugin.stop(ctx), r.plugin.start(ctx)); err != nil {
			t.Error(err)
		}
	}
	r.plugin.under, r.plugin.extra = under, append(slices.Clone(was.extra), "--mps")
	again(r.ctx(t))
	t.Cleanup(func() {
		r.plugin.under, r.plugin.extra = was.under, was.extra
		again(context.WithoutCancel(t.Context()))
	})
	if err := keeper.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.configure(t, claimedGPUs+"sgpu: {enforce: {memory: mps, compute: mps}}\n")
	t.Cleanup(func() { r.configure(t, claimedGPUs) })
}
