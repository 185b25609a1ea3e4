//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	account "github.com/heddle-dev/heddle/deviceplugin/report"
)

// The resources of shared cards. A DGX H100 has 8 cards of 16 slots and 79
// whole GiB.
const (
	slotResource   = "nvidia.com/sgpu"
	coreResource   = "nvidia.com/vcore"
	memoryResource = "nvidia.com/vmemory"

	allSlots, allCores, allGiB = 8 * 16, 8 * 100, 8 * 79
)

// sharedCards is the configuration of rigs that share all cards.
const sharedGPUs = quickHealth + "mode: sgpu\n"

// sgpu is a rig whose GPUs are all shared and free. The test gives it back like that.
func sgpu(t *testing.T) *rig {
	t.Helper()
	r := sharedRig(t, options{name: "sgpu", config: sharedGPUs})
	r.configure(t, sharedGPUs)
	r.waitShares(t, allSlots, allCores, allGiB)
	return r
}

// waitShares waits until the Node offers this much.
func (r *rig) waitShares(t *testing.T, slots, cores, gib int64) {
	t.Helper()
	eventually(t, func() string {
		got := [3]int64{r.allocatable(t, slotResource), r.allocatable(t, coreResource), r.allocatable(t, memoryResource)}
		if want := [3]int64{slots, cores, gib}; got != want {
			return fmt.Sprintf("allocatable sgpu, vcore and vmemory are %v, want %v", got, want)
		}
		return ""
	})
}

// configure changes the configuration of the running plugin.
func (r *rig) configure(t *testing.T, text string) {
	t.Helper()
	if err := r.writeConfig(text); err != nil {
		t.Fatal(err)
	}
}

// shares is a request for parts of several cards; what is 0 is not asked for.
func shares(gpus, vcore, gib int) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]int{slotResource: gpus, coreResource: vcore, memoryResource: gib} {
		if n != 0 {
			list[name] = quantity(n)
		}
	}
	return list
}

// share is a request for a part of one card.
func share(vcore, gib int) corev1.ResourceList { return shares(1, vcore, gib) }

// card is the UUID of a card, by index.
func (r *rig) gpuAt(t *testing.T, index int) string {
	t.Helper()
	m := r.machine(t)
	for i := range m.GPUs {
		if m.GPUs[i].Index == index {
			return m.GPUs[i].UUID
		}
	}
	t.Fatalf("there is no card %d", index)
	return ""
}

// index is the reverse of card.
func (r *rig) index(t *testing.T, uuid string) int {
	t.Helper()
	m := r.machine(t)
	for i := range m.GPUs {
		if m.GPUs[i].UUID == uuid {
			return m.GPUs[i].Index
		}
	}
	t.Fatalf("there is no card %s", uuid)
	return -1
}

// shares are those that a container gets listed, by UUID.
func (s *seen) shares() ([]allocation.Share, error) {
	var all []allocation.Share
	if s.Devices == nil {
		return nil, nil
	}
	for _, g := range s.Devices.GPUs {
		if g.Share == nil {
			return nil, fmt.Errorf("the devices file gives all of %s", g.UUID)
		}
		all = append(all, *g.Share)
	}
	if len(all) == 0 {
		return nil, nil
	}
	var reported allocation.Sharing
	if err := json.Unmarshal([]byte(s.Env[cdi.EnvShares]), &reported); err != nil {
		return nil, fmt.Errorf("%s is %q: %w", cdi.EnvShares, s.Env[cdi.EnvShares], err)
	}
	if diff := cmp.Diff(byGPU(all), byGPU(reported.Shares)); diff != "" {
		return nil, fmt.Errorf("shares (-file +%s):\n%s", cdi.EnvShares, diff)
	}
	return byGPU(all), nil
}

// account is what the plugin reports.
func (r *rig) account(t *testing.T) *account.Report {
	t.Helper()
	got := &account.Report{}
	eventually(t, func() string {
		text, err := r.get(t.Context(), account.Path)
		if err = errors.Join(err, json.Unmarshal([]byte(text), got)); err != nil {
			return err.Error()
		}
		return ""
	})
	return got
}

// annotatePod merges annotations into a pod, as another client than its node.
func (r *rig) annotatePod(ctx context.Context, pod string, annotations map[string]string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// heddle runs the command of that name and returns what it prints. It may end
// with status 1, which is doctor's for problems.
func (r *rig) heddle(t *testing.T, args ...string) string {
	t.Helper()
	out, code := r.heddleExit(t, args...)
	if code != 0 && (code != 1 || args[0] != "doctor") {
		t.Fatalf("heddle %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// heddleExit runs it and returns its exit code too.
func (r *rig) heddleExit(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(r.ctx(t), program(t, "heddle"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.Kubeconfig())
	return exit(t, cmd)
}

// exit runs a command, and returns what it prints and its exit code.
func exit(t *testing.T, cmd *exec.Cmd) (out string, code int) {
	t.Helper()
	text, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, text)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// program is one of heddle's, by its name.
func program(t *testing.T, name string) string {
	t.Helper()
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b.installer == nil {
		return filepath.Join(b.dir, name)
	}
	file, err := b.installer.Build(context.WithoutCancel(t.Context()), name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
