package enforce

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

// full are the facts of a node where everything works.
func full() Facts {
	return Facts{
		Driver: "615.20.01", MPSControl: "/usr/bin/nvidia-cuda-mps-control", MPS: true, CgroupV2: true,
		Hook: "/usr/bin/nvidia-cdi-hook",
	}
}

// TestChoose: the file has what differs from full and from the configuration auto, and what limits memory and compute,
// with the reasons.
func TestChoose(t *testing.T) {
	golden.Rows(t, "testdata/choices.txt", *update, func(differs string) string {
		row := struct {
			config.Enforce
			Facts
		}{config.Enforce{Memory: config.EnforceAuto, Compute: config.EnforceAuto}, full()}
		if err := json.Unmarshal([]byte(differs), &row); err != nil { //nolint:musttag // Rows are of this test alone.
			t.Fatal(err)
		}
		got, err := choose(&row.Enforce, &row.Facts)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, %s\n%s\n%s", got.Memory, got.Compute, got.WhyMemory, got.WhyCompute)
	})
}

func TestDMemEdits(t *testing.T) {
	l := New(Options{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	facts := full()
	facts.Hook, facts.DriverRoot = "/usr/local/heddle/nvidia-cdi-hook", "/run/nvidia/driver"
	c := config.Enforce{Memory: config.EnforceDMem, Compute: config.EnforceNone}
	if err := l.Configure(&c, &facts); err != nil {
		t.Fatal(err)
	}
	limit := share("p", gpuA, 30, 4096)
	limit.GPUs = append(limit.GPUs, share("p", gpuB, 30, 4096).GPUs...)
	hook := func(gpu string) *cdi.Hook {
		return &cdi.Hook{
			HookName: "createRuntime", Path: "/usr/local/heddle/nvidia-cdi-hook",
			Args: []string{"nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/run/nvidia/driver", "--gpu-id", gpu},
			Env:  []string{"NVIDIA_CTK_DEBUG=false"},
		}
	}
	for policy, request := range map[quota.Policy]string{quota.FixedShare: "4096", quota.BurstShare: "4096", quota.BestEffort: "0"} {
		limit.Policy = policy
		got, _, err := l.Edits(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		want := &cdi.ContainerEdits{
			Env:   []string{"NVIDIA_GPU_MEMORY_LIMIT=4096", "NVIDIA_GPU_MEMORY_REQUEST=" + request},
			Hooks: []*cdi.Hook{hook(gpuA), hook(gpuB)},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", policy, diff)
		}
	}
	limit.GPUs[1].Share.MemoryMiB = 2048
	if _, _, err := l.Edits(t.Context(), limit); err == nil {
		t.Error("two limits in one container: the hook knows one")
	}
	// One that started with dmem goes on with it, which takes the hook.
	facts.Hook, facts.HookError = "", "no nvidia-cdi-hook"
	limit = share("p", gpuA, 30, 4096)
	limit.By = Enforced{config.EnforceDMem, config.EnforceNone}
	if err := l.Configure(&c, &facts); err == nil {
		t.Error("dmem is chosen without a hook")
	}
	if got, _, err := l.Edits(t.Context(), limit); err == nil {
		t.Errorf("edits without a hook: %+v", got)
	}
}

// unmeasured is a share of a GPU that reports no memory.
func unmeasured(vcore int) *Limit {
	l := share("p", gpuA, vcore, 0)
	l.GPUs[0].TotalMiB = 0
	return l
}

func TestLimiterNeedsNoEnforcer(t *testing.T) {
	l := New(Options{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if _, _, err := l.Edits(t.Context(), share("p", gpuA, 30, 4096)); !errors.Is(err, errNotConfigured) {
		t.Errorf("before it was configured: %v", err)
	}
	facts := full()
	c := config.Enforce{Memory: config.EnforceDMem, Compute: config.EnforceMPS}
	if err := l.Configure(&c, &facts); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		limit *Limit
		want  Enforced
	}{
		{"a GPU to itself", share("p", gpuA, 100, 81559), Enforced{config.EnforceNone, config.EnforceNone}},
		{"a GPU to itself, not all of its memory", share("p", gpuA, 100, 4096), Enforced{config.EnforceDMem, config.EnforceNone}},
		{"a GPU that reports no memory", unmeasured(100), Enforced{config.EnforceNone, config.EnforceNone}},
		{"what it had before", &Limit{Pod: "p", Container: "c", By: Enforced{config.EnforceNone, config.EnforceNone}, GPUs: share("p", gpuA, 30, 4096).GPUs}, Enforced{config.EnforceNone, config.EnforceNone}},
	} {
		_, got, err := l.Edits(t.Context(), tt.limit)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	// A configuration that cannot work rejects, and does not go on as before.
	facts.MPSControl = ""
	want := l.Configure(&c, &facts)
	if _, _, err := l.Edits(t.Context(), share("p", gpuA, 30, 4096)); err == nil || want == nil || err.Error() != want.Error() {
		t.Errorf("got  %v\nwant %v", err, want)
	}
}

func TestNotEnforced(t *testing.T) {
	none := Enforced{config.EnforceNone, config.EnforceNone}
	whole := share("p", gpuA, 100, 81559)
	whole.GPUs[0].TotalMiB = 81559
	best := share("p", gpuA, 30, 4096)
	best.Policy = quota.BestEffort
	for _, tt := range []struct {
		name  string
		limit *Limit
		by    Enforced
		want  []string
	}{
		{"nothing limits it", share("p", gpuA, 60, 4096), none, []string{"memory", "compute"}},
		{"memory alone is limited", share("p", gpuA, 60, 4096), Enforced{config.EnforceDMem, config.EnforceNone}, []string{"compute"}},
		{"compute alone is limited", share("p", gpuA, 60, 4096), Enforced{config.EnforceNone, config.EnforceMPS}, []string{"memory"}},
		{"both are", share("p", gpuA, 60, 4096), Enforced{config.EnforcePreload, config.EnforcePreload}, nil},
		{"it has not started", share("p", gpuA, 60, 4096), Enforced{}, nil},
		{"an exclusive GPU", whole, none, nil},
		{"a GPU alone, and a part of its memory", share("p", gpuA, 100, 4096), none, []string{"memory"}},
		{"no limit of compute", share("p", gpuA, 0, 4096), none, []string{"memory"}},
		{"a GPU that reports no memory", unmeasured(60), none, []string{"compute"}},
		{"best effort has no limit of compute", best, none, []string{"memory"}},
	} {
		tt.limit.By = tt.by
		if diff := cmp.Diff(tt.want, tt.limit.NotEnforced()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
