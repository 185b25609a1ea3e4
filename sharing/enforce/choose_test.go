package enforce

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// full are the facts of a node where everything works.
func full() Facts {
	return Facts{
		Driver: "615.20.01", MPSControl: "/usr/bin/nvidia-cuda-mps-control", MPS: true, CgroupV2: true,
		Hook: "/usr/bin/nvidia-cdi-hook",
	}
}

func TestChoose(t *testing.T) {
	auto := config.Enforce{Memory: config.EnforceAuto, Compute: config.EnforceAuto}
	for _, tt := range []struct {
		name  string
		c     config.Enforce
		facts func(*Facts)
		want  Choice
		err   string
	}{
		{"everything works", auto, func(*Facts) {}, Choice{
			Enforced{config.EnforceDMem, config.EnforceMPS},
			"memory is limited by dmem: it is the strongest that works here",
			"compute is limited by mps: it is the strongest that works here",
		}, ""},
		{"an older driver", auto, func(f *Facts) { f.Driver = "570.86.15" }, Choice{
			Enforced{config.EnforcePreload, config.EnforceMPS},
			"memory is limited by preload: it is the strongest that works here; not by dmem, because driver 570.86.15 is older than r615",
			"compute is limited by mps: it is the strongest that works here",
		}, ""},
		{"a hook without the subcommand, no library", auto, func(f *Facts) {
			f.HookError = "hook /h has none"
			f.LibraryError = "no library"
		}, Choice{
			Enforced{config.EnforceMPS, config.EnforceMPS},
			"memory is limited by mps: it is the strongest that works here; not by dmem, because hook /h has none; not by preload, because no library",
			"compute is limited by mps: it is the strongest that works here",
		}, ""},
		{"MIG is on", auto, func(f *Facts) { f.MIG = []string{"GPU-7"} }, Choice{
			Enforced{config.EnforcePreload, config.EnforcePreload},
			"memory is limited by preload: it is the strongest that works here; not by dmem, because MIG is on, on GPU GPU-7",
			"compute is limited by preload: it is the strongest that works here; not by mps, because MIG is on, on GPU GPU-7",
		}, ""},
		{"another maker's GPUs", auto, func(f *Facts) {
			f.Maker = "amd.com"
			f.LibraryError, f.RegionError = "no library", "no controller"
		}, Choice{
			Enforced{config.EnforceNone, config.EnforceNone},
			"memory is not limited, only counted; not by dmem, because no controller; not by preload, " +
				"because no library; not by mps, because mps does not support GPUs of amd.com",
			"compute is not limited, only counted; not by mps, because mps does not support GPUs of amd.com; not by preload, " +
				"because no library",
		}, ""},
		{"nothing works", auto, func(f *Facts) { *f = Facts{LibraryError: "no library"} }, Choice{
			Enforced{config.EnforceNone, config.EnforceNone},
			"memory is not limited, only counted; not by dmem, because no driver; not by preload, because no library; not by mps, because no driver",
			"compute is not limited, only counted; not by mps, because no driver; not by preload, because no library",
		}, ""},
		{
			"as configured",
			config.Enforce{Memory: config.EnforceNone, Compute: config.EnforcePreload},
			func(*Facts) {},
			Choice{
				Enforced{config.EnforceNone, config.EnforcePreload},
				"memory is not limited, only counted: the configuration has none",
				"compute is limited by preload: the configuration selects it",
			},
			"",
		},
		{
			"what is configured cannot work",
			config.Enforce{Memory: config.EnforceDMem, Compute: config.EnforceMPS},
			func(f *Facts) { f.CgroupV2, f.MPS = false, false },
			Choice{},
			"sgpu.enforce.memory is dmem, which cannot work here: the node has no cgroup v2 at /sys/fs/cgroup\n" +
				"sgpu.enforce.compute is mps, which cannot work here: heddle-mps is not deployed (gpuDevice.mps)",
		},
		{
			"MPS limits compute before it limited memory",
			config.Enforce{Memory: config.EnforceMPS, Compute: config.EnforceMPS},
			func(f *Facts) { f.Driver = "470.82.01" },
			Choice{},
			"sgpu.enforce.memory is mps, which cannot work here: driver 470.82.01 is older than r495",
		},
		{
			"an old GPU, no program",
			config.Enforce{Memory: config.EnforceNone, Compute: config.EnforceMPS},
			func(f *Facts) { f.PreVolta = []string{"GPU-1"} },
			Choice{},
			"sgpu.enforce.compute is mps, which cannot work here: GPU GPU-1 is older than Volta",
		},
		{
			"evict, and no MPS beside it",
			config.Enforce{Memory: config.EnforceEvict, Compute: config.EnforceAuto},
			func(*Facts) {},
			Choice{
				Enforced{config.EnforceEvict, config.EnforcePreload},
				"memory is not limited; a pod over its share is evicted: the configuration selects it",
				"compute is limited by preload: it is the strongest that works here",
			},
			"",
		},
		{
			"evict with MPS",
			config.Enforce{Memory: config.EnforceEvict, Compute: config.EnforceMPS},
			func(*Facts) {},
			Choice{},
			"sgpu.enforce: memory evict does not go with compute mps: the driver counts for the MPS server what its clients use",
		},
		{
			"evict, and nothing is measured",
			config.Enforce{Memory: config.EnforceEvict, Compute: config.EnforceNone},
			func(f *Facts) { f.UsageError = "no hostPID" },
			Choice{},
			"sgpu.enforce.memory is evict, which cannot work here: no hostPID",
		},
		{
			"evict of another maker's GPUs",
			config.Enforce{Memory: config.EnforceEvict, Compute: config.EnforceNone},
			func(f *Facts) { f.Maker = "amd.com" },
			Choice{},
			"sgpu.enforce.memory is evict, which cannot work here: evict does not support GPUs of amd.com",
		},
		{"a version without a number", auto, func(f *Facts) { *f = Facts{Driver: "n/a"} }, Choice{
			Enforced{config.EnforcePreload, config.EnforcePreload},
			`memory is limited by preload: it is the strongest that works here; not by dmem, because invalid driver version "n/a"`,
			`compute is limited by preload: it is the strongest that works here; not by mps, because invalid driver version "n/a"`,
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			facts := full()
			tt.facts(&facts)
			got, err := choose(&tt.c, &facts)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(tt.err, text); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
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
