//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// Four pairs are four GPUs with four different HCAs, each the nearest; the container opens those and no others,
// and its devices go back with the pod.
func TestClaimsOfPairs(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "pairs", exactly("pair", "gpu-hca.heddle.dev", 4))
	r.run(t, r.claimant("pairs", "pairs"))
	seen := r.report(t, "pairs", "app")
	gpus, hcas := given(t, seen)
	slices.Sort(hcas)
	if len(gpus) != 4 || len(slices.Compact(hcas)) != 4 {
		t.Errorf("GPUs %v, HCAs %v", gpus, hcas)
	}
	nodes := 0
	for path, answer := range seen.Open {
		if strings.HasPrefix(path, "/host/gpus/") && answer == "ENXIO" {
			nodes++
		}
	}
	if nodes != 4 {
		t.Errorf("the container opens %d GPUs: %v", nodes, seen.Open)
	}
	r.claim(t, "five", exactly("gpu", "gpu.heddle.dev", 5))
	r.create(t, r.claimant("five", "five"))
	r.waitEvent(t, "five", "FailedScheduling", "cannot allocate all claims")
	r.remove(t, "pairs")
	r.waitReady(t, "five")
}

// Pods that request the extended resource get GPUs by a claim that the scheduler makes.
func TestClaimsOfOldManifests(t *testing.T) {
	r := claimsRig(t)
	r.run(t, r.pod("old", box{gpus: 2}))
	if gpus, _ := given(t, r.report(t, "old", "app")); len(gpus) != 2 {
		t.Errorf("GPUs %v", gpus)
	}
}

// A claim stays prepared when the driver restarts, and its specs are back where the CDI directory was emptied: its
// container starts again.
func TestClaimsOutliveTheDriver(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "stays", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("stays", "stays"))
	before, _ := given(t, r.report(t, "stays", "app"))
	if err := r.plugin.stop(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	specs, err := filepath.Glob(filepath.Join(r.NodeDir("/var/run/cdi"), "heddle-claim-*.json"))
	if err != nil || len(specs) != 1 {
		t.Fatalf("specs %v, %v", specs, err)
	}
	if err := os.Remove(specs[0]); err != nil {
		t.Fatal(err)
	}
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if _, err := os.Stat(specs[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	r.stopContainer(t, "stays", "app")
	r.waitRestart(t, "stays", 1)
	if after, _ := given(t, r.report(t, "stays", "app")); !slices.Equal(before, after) {
		t.Errorf("GPUs %v, and %v before", after, before)
	}
}

// A node goes from claims to the device plugin and back while pods hold its GPUs: no GPU is given twice.
func TestClaimsAndBack(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "holds", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("holds", "holds"))
	gpus, _ := given(t, r.report(t, "holds", "app"))
	r.configure(t, quickHealth+"mode: "+string(config.ModeNative)+"\n")
	r.waitAllocatable(t, gpuResource, 7)
	r.run(t, r.pod("plugin", box{gpus: 7}))
	if own, _ := given(t, r.report(t, "plugin", "app")); slices.Contains(own, gpus[0]) {
		t.Errorf("GPU %s has two pods", gpus[0])
	}
	r.remove(t, "holds")
	r.waitAllocatable(t, gpuResource, 8)
	r.configure(t, claimedGPUs)
	r.waitClaimable(t, 1)
	r.remove(t, "plugin")
	r.waitClaimable(t, 8)
}

func TestClaimExamples(t *testing.T) {
	r := claimsRig(t)
	for file, want := range map[string]int{
		"gpu": 1, "pairs": 4, "share": 1, "two-shares": 2, "first-available": 1, "old-manifest": 2, "tolerate": 1,
	} {
		t.Run(file, func(t *testing.T) {
			on := map[string]bool{}
			for pod, seen := range r.claimExample(t, file, map[bool]int{true: 3, false: 1}[file == "share"]) {
				gpus, _ := given(t, seen)
				if len(gpus) != want {
					t.Errorf("pod %s has GPUs %v", pod, gpus)
				}
				for _, uuid := range gpus {
					on[uuid] = true
				}
			}
			if len(on) != want {
				t.Errorf("GPUs %v", on)
			}
		})
	}
}

// A claim gets a MIG device, and nobody its GPU.
func TestClaimsOfMIG(t *testing.T) {
	r := claimsRig(t)
	var part, whole string
	r.change(t, func(m *machine.Machine) {
		g := &m.GPUs[7]
		whole, part = g.UUID, "MIG-5c0d1e7a-0000-5000-8000-000000000001"
		g.MIG = machine.MIG{Capable: true, Enabled: true, Devices: []machine.MIGDevice{{UUID: part, Profile: "1g.10gb", MemoryMiB: 9856}}}
		var node unix.Stat_t
		if err := unix.Stat(filepath.Join(r.dir, "gpus", whole), &node); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(filepath.Join(r.dir, "gpus", part), unix.S_IFCHR|0o666, int(node.Rdev)); err != nil {
			t.Fatal(err)
		}
	})
	r.waitClaimable(t, 7)
	gpus, _ := given(t, r.claimExample(t, "mig", 1)["claim-mig"])
	if !slices.Equal(gpus, []string{part}) {
		t.Errorf("GPUs %v, want %s", gpus, part)
	}
}

// adminAccess sees all GPUs beside the pods that have them, and takes none.
func TestClaimsOfAdmins(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "users", exactly("gpu", "gpu.heddle.dev", 7))
	r.run(t, r.claimant("users", "users"))
	if gpus, _ := given(t, r.claimExample(t, "admin", 1)["claim-admin"]); len(gpus) != 8 {
		t.Errorf("GPUs %v", gpus)
	}
	r.claim(t, "last", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("last", "last"))
}

// The pods of a job have one IMEX channel of the clique: feature-discovery labels the node with it, topo-worker reports
// it, and topo-master publishes its channels.
func TestClaimsOfChannels(t *testing.T) {
	r := claimsRig(t)
	const clique = "a84f3d2b-e94c-4ec2-bc97-30d8a143882d"
	r.change(t, func(m *machine.Machine) {
		for i := range m.GPUs {
			m.GPUs[i].Fabric = &machine.Fabric{ClusterUUID: clique, CliqueID: 7, State: machine.FabricCompleted}
		}
	})
	r.topologyCRD(t)
	flags := []string{"--node-name", r.Node(), "--machine", r.machineFile(), "--config", filepath.Join(r.dir, "config")}
	for _, p := range []*process{
		r.another(t, r.plugin.binary, labelerDaemon, flags...),
		r.another(t, r.plugin.binary, workerDaemon, flags...),
		r.another(t, program(t, "heddle-topo-master"), "", "--exports", "imex", "--config", filepath.Join(r.dir, "config")),
	} {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	channel := ""
	for pod, seen := range r.claimExample(t, "imex-job", 2) {
		if gpus, _ := given(t, seen); len(gpus) != 4 {
			t.Errorf("pod %s has GPUs %v", pod, gpus)
		}
		var own []string
		for path, answer := range seen.Open {
			if strings.HasPrefix(path, "/dev/nvidia-caps-imex-channels/") && answer == "ENXIO" {
				own = append(own, path)
			}
		}
		if len(own) != 1 || channel != "" && own[0] != channel {
			t.Fatalf("pod %s opens the channels %v, another %q", pod, own, channel)
		}
		channel = own[0]
	}
}

// A fault taints the GPU and its pair, and the pod's status says what is wrong; all of that ends with the fault.
func TestClaimsHealth(t *testing.T) {
	r := claimsRig(t)
	r.claim(t, "sick", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("sick", "sick"))
	gpus, _ := given(t, r.report(t, "sick", "app"))
	set := func(state machine.HealthState) {
		t.Helper()
		m := r.machine(t)
		for i := range m.GPUs {
			if m.GPUs[i].UUID == gpus[0] {
				m.GPUs[i].Health.State = state
			}
		}
		if err := r.writeMachine(m); err != nil {
			t.Fatal(err)
		}
	}
	before := r.machine(t)
	t.Cleanup(func() {
		if err := r.writeMachine(before); err != nil {
			t.Error(err)
		}
	})
	tainted := func(want int) {
		t.Helper()
		eventually(t, func() string {
			n := 0
			for _, d := range r.claimable(t) {
				if slices.ContainsFunc(d.Taints, func(taint resourcev1.DeviceTaint) bool { return taint.Key == claims.TaintUnhealthy }) {
					n++
				}
			}
			if n != want {
				return fmt.Sprintf("%d devices have the taint, want %d", n, want)
			}
			return ""
		})
	}
	health := func(want corev1.ResourceHealthStatus) {
		t.Helper()
		r.waitPod(t, "sick", func(p *corev1.Pod) string {
			for _, s := range status(p, "app").AllocatedResourcesStatus {
				for _, h := range s.Resources {
					if h.Health == want {
						return ""
					}
				}
			}
			return fmt.Sprintf("its status has %+v, want %s", status(p, "app").AllocatedResourcesStatus, want)
		})
	}
	health(corev1.ResourceHealthStatusHealthy)
	set(machine.Lost)
	tainted(2)
	health(corev1.ResourceHealthStatusUnhealthy)
	r.waitClaimable(t, 7)
	set(before.GPUs[0].Health.State)
	tainted(0)
	health(corev1.ResourceHealthStatusHealthy)
	r.waitClaimable(t, 8)
}

// What a claim or its parameters have wrong is said where their owner looks, and nothing is kept.
func TestClaimsOfBadInput(t *testing.T) {
	r := claimsRig(t)
	for name, amount := range map[resourcev1.QualifiedName]string{claims.CapacityVMemory: "900Gi", claims.CapacityVCore: "101"} {
		bad, pod := exactly("share", "sgpu.heddle.dev", 1), "large-"+string(name)
		bad.Exactly.Capacity = &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{name: resource.MustParse(amount)},
		}
		r.claim(t, pod, bad)
		r.create(t, r.claimant(pod, pod))
		r.waitEvent(t, pod, "FailedScheduling", "cannot allocate all claims")
	}
	// Kubernetes rounds up to the least amount.
	least := exactly("share", "sgpu.heddle.dev", 1)
	least.Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
		claims.CapacityVCore: resource.MustParse("0"), claims.CapacityVMemory: resource.MustParse("1Gi"),
	}}
	r.claim(t, "least", least)
	r.run(t, r.claimant("least", "least"))
	told := r.report(t, "least", "app").Devices
	if !strings.Contains(told, `"vcore": 1,`) || !strings.Contains(told, `"memoryMiB": 1024`) {
		t.Errorf("the container is told of %s", told)
	}
	r.remove(t, "least")
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "typo", Namespace: namespace},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{exactly("gpu", "gpu.heddle.dev", 1)},
			Config: []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: claims.Driver, Parameters: runtime.RawExtension{
					Raw: []byte(`{"apiVersion":"` + claims.APIVersion + `","kind":"` + claims.ParametersKind + `","polcy":"x"}`),
				}},
			}}},
		}},
	}
	if _, err := r.client.ResourceV1().ResourceClaims(namespace).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.client.ResourceV1().ResourceClaims(namespace).Delete(context.WithoutCancel(t.Context()), "typo", metav1.DeleteOptions{})
	})
	r.create(t, r.claimant("typo", "typo"))
	r.waitEvent(t, "typo", "FailedPrepareDynamicResources", `unknown field "polcy"`)
	specs, err := filepath.Glob(filepath.Join(r.NodeDir("/var/run/cdi"), "heddle-claim-*.json"))
	if err != nil || len(specs) != 0 {
		t.Errorf("specs %v, %v", specs, err)
	}
}
