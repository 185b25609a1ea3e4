//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/machine"
)

// claimedGPUs is a configuration for claims.
const claimedGPUs = quickHealth + "mode: claims\n"

// claimClasses are the chart's DeviceClasses, rendered by hand: this rig has no chart.
func claimClasses() string {
	var all strings.Builder
	for class, device := range map[string]claims.Type{
		"gpu": claims.GPU, "gpu-hca": claims.Pair, "hca": claims.HCA, "sgpu": claims.GPU, "mig": claims.MIG,
		"imex": claims.IMEX, "monitor": claims.Monitor,
	} {
		fmt.Fprintf(&all, "---\napiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: %s.heddle.dev}\nspec:\n"+
			"  selectors:\n  - cel: {expression: \"device.driver == '%s' && device.attributes['%[2]s'].type == '%s'\"}\n",
			class, claims.Driver, device)
		if class == "gpu" {
			fmt.Fprintf(&all, "  extendedResourceName: %s\n", gpuResource)
		}
	}
	return all.String()
}

// claimsRig is a node whose GPUs are in mode claims.
func claimsRig(t *testing.T) *rig {
	t.Helper()
	first := current.name != "claims"
	// The Makefile's group claims runs these tests on another version.
	o := options{name: "claims", config: claimedGPUs, held: true, emulated: os.Getenv("HEDDLE_EMULATED_VERSION")}
	r := sharedRig(t, o)
	if first {
		if err := r.Apply(t.Context(), claimClasses()); err != nil {
			t.Fatal(err)
		}
		const dir = "/var/lib/kubelet/plugins/" + claims.Driver
		majors, err := freeMajors(3) // The first two are of GPUs and HCAs.
		if err != nil {
			t.Fatal(err)
		}
		proc := filepath.Join(r.dir, "proc")
		devices := fmt.Sprintf("Character devices:\n%d nvidia-caps-imex-channels\n\nBlock devices:\n", majors[2])
		if err := errors.Join(os.Mkdir(proc, 0o750), os.WriteFile(filepath.Join(proc, "devices"), []byte(devices), 0o600)); err != nil {
			t.Fatal(err)
		}
		r.plugin.extra = []string{"--claims-dir", dir, "--proc-root", proc}
		if err := r.plugin.start(r.ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	r.waitClaimable(t, 8)
	return r
}

// claimable returns the devices that the node has published, by name.
func (r *rig) claimable(t *testing.T) map[string]resourcev1.Device {
	t.Helper()
	list, err := r.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]resourcev1.Device{}
	for i := range list.Items {
		for _, d := range list.Items[i].Spec.Devices {
			all[d.Name] = d
		}
	}
	return all
}

// waitClaimable waits until claims can get this many whole GPUs.
func (r *rig) waitClaimable(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() string {
		n := 0
		for name, d := range r.claimable(t) {
			if strings.HasPrefix(name, string(claims.GPU)+"-") && len(d.Taints) == 0 {
				n++
			}
		}
		if n != want {
			return fmt.Sprintf("%d GPUs of %d are published without taints", n, want)
		}
		return ""
	})
}

// claim creates a claim of devices of a class, and deletes it after the test.
func (r *rig) claim(t *testing.T, name string, requests ...resourcev1.DeviceRequest) {
	t.Helper()
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}
	if _, err := r.client.ResourceV1().ResourceClaims(namespace).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := r.client.ResourceV1().ResourceClaims(namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

func exactly(name, class string, count int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: name, Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}
}

// claimant returns a pod whose container uses claims, all requests of each.
func (r *rig) claimant(name string, claimNames ...string) *corev1.Pod {
	p := r.pod(name, box{})
	for _, claim := range claimNames {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		c := &p.Spec.Containers[0]
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	return p
}

// given returns what the container was told.
func given(t *testing.T, seen *report) (gpus, hcas []string) {
	t.Helper()
	var file struct {
		GPUs []struct {
			UUID string `json:"uuid"`
		} `json:"gpus"`
		HCAs []struct {
			Name string `json:"name"`
		} `json:"hcas"`
	}
	if err := json.Unmarshal([]byte(seen.Devices), &file); err != nil {
		t.Fatalf("devices.json: %v in %q", err, seen.Devices)
	}
	for _, g := range file.GPUs {
		gpus = append(gpus, g.UUID)
	}
	for _, h := range file.HCAs {
		hcas = append(hcas, h.Name)
	}
	return gpus, hcas
}

// claimExample applies an example as it is, but for its image, and returns what each of its pods was told. It is
// deleted with the test.
func (r *rig) claimExample(t *testing.T, file string, pods int) map[string]*report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy/examples/claims", file+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`image: busybox:[^\n]*\n *command: [^\n]*`)
	path := filepath.Join(t.TempDir(), "example.yaml")
	if err := os.WriteFile(path, []byte(image.ReplaceAllString(string(text), "image: "+reportImage)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.kubectl(t, "apply", "-f", path)
	t.Cleanup(func() {
		if out, err := r.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", path, "--wait", "--timeout=3m"); err != nil {
			t.Error(out, err)
		}
	})
	all := map[string]*report{}
	eventually(t, func() string {
		list, err := r.client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		clear(all)
		for i := range list.Items {
			p := &list.Items[i]
			if !strings.HasPrefix(p.Name, "claim-") || p.DeletionTimestamp != nil {
				continue
			}
			if !ready(p) {
				return inShort(p)
			}
			log, err := r.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
			if err == nil {
				all[p.Name], err = parseReport(log)
			}
			if err != nil {
				return err.Error()
			}
		}
		if len(all) != pods {
			return fmt.Sprintf("%d pods", len(all))
		}
		return ""
	})
	return all
}

// change replaces the machine until the end of the test.
func (r *rig) change(t *testing.T, edit func(*machine.Machine)) {
	t.Helper()
	before, m := r.machine(t), r.machine(t)
	edit(m)
	if err := r.writeMachine(m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.writeMachine(before); err != nil {
			t.Error(err)
		}
	})
}
