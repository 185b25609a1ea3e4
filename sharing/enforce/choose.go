package enforce

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
)

// Choice holds the enforcers of a node, with a reason for each.
type Choice struct {
	Enforced
	WhyMemory  string `json:"whyMemory,omitempty"`
	WhyCompute string `json:"whyCompute,omitempty"`
}

// The first drivers that can: MPS limits memory since CUDA 11.5, and per-cgroup
// limits came with CUDA 13.4.
const (
	driverMPSMemory = 495
	driverDMem      = 615
)

// choose takes for memory and for compute the enforcers that are configured,
// or with auto the strongest that works on the node. A configured one that
// cannot work is an error: no weaker one takes its place.
func choose(c *config.Enforce, f *Facts) (Choice, error) {
	memory, whyMemory, errMemory := pick("memory", c.Memory, f,
		config.EnforceDMem, config.EnforcePreload, config.EnforceMPS)
	order := []config.Enforcer{config.EnforceMPS, config.EnforcePreload}
	var errBoth error
	if c.Memory == config.EnforceEvict {
		order = order[1:] // What a client of MPS uses is on the account of its server.
		if c.Compute == config.EnforceMPS {
			errBoth = errors.New("sgpu.enforce: memory evict does not go with compute mps: " +
				"the driver counts for the MPS server what its clients use")
		}
	}
	compute, whyCompute, errCompute := pick("compute", c.Compute, f, order...)
	if err := errors.Join(errMemory, errCompute, errBoth); err != nil {
		return Choice{}, err
	}
	return Choice{Enforced{memory, compute}, whyMemory, whyCompute}, nil
}

// pick chooses for one aspect; order has the strongest first.
func pick(
	aspect string, wanted config.Enforcer, f *Facts, order ...config.Enforcer,
) (config.Enforcer, string, error) {
	if wanted == config.EnforceNone {
		return config.EnforceNone, aspect + " is not limited, only counted: the configuration has none", nil
	}
	if wanted != config.EnforceAuto {
		if fault := f.unsupported(wanted, aspect); fault != "" {
			return "", "", fmt.Errorf("sgpu.enforce.%s is %s, which cannot work here: %s", aspect, wanted, fault)
		}
		if wanted == config.EnforceEvict {
			return wanted, aspect + " is not limited; a pod over its share is evicted: the configuration selects it", nil
		}
		return wanted, fmt.Sprintf("%s is limited by %s: the configuration selects it", aspect, wanted), nil
	}
	var rejected []string
	for _, kind := range order {
		fault := f.unsupported(kind, aspect)
		if fault == "" {
			why := fmt.Sprintf("%s is limited by %s: it is the strongest that works here", aspect, kind)
			if len(rejected) > 0 {
				why += "; not by " + strings.Join(rejected, "; not by ")
			}
			return kind, why, nil
		}
		rejected = append(rejected, fmt.Sprintf("%s, because %s", kind, fault))
	}
	return config.EnforceNone, aspect + " is not limited, only counted; not by " + strings.Join(rejected, "; not by "), nil
}

// unsupported returns the reason why an enforcer cannot work on the node; empty
// if it can.
func (f *Facts) unsupported(kind config.Enforcer, aspect string) string {
	// 570 of 570.86.15.
	number, _, _ := strings.Cut(f.Driver, ".")
	major, err := strconv.Atoi(number)
	oldest := 0
	switch dmem, mps := kind == config.EnforceDMem, kind == config.EnforceMPS; {
	case kind == config.EnforcePreload:
		return f.LibraryError
	case kind == config.EnforceEvict && f.Maker == "":
		return f.UsageError
	case !dmem && !mps && kind != config.EnforceEvict:
		return fmt.Sprintf("unknown enforcer %q", kind)
	case dmem && f.Maker != "":
		return f.RegionError
	case f.Maker != "":
		return fmt.Sprintf("%s does not support GPUs of %s", kind, f.Maker)
	case f.Driver == "":
		return "no driver"
	case err != nil || major <= 0:
		return fmt.Sprintf("invalid driver version %q", f.Driver)
	case mps && !f.MPS:
		return "heddle-mps is not deployed (gpuDevice.mps)"
	case mps && f.MPSControl == "":
		return "the driver's root has no nvidia-cuda-mps-control"
	case dmem:
		oldest = driverDMem
	case aspect == "memory":
		oldest = driverMPSMemory
	}
	switch dmem := kind == config.EnforceDMem; {
	case major < oldest:
		return fmt.Sprintf("driver %s is older than r%d", f.Driver, oldest)
	case dmem && !f.CgroupV2:
		return "the node has no cgroup v2 at /sys/fs/cgroup"
	case !dmem && len(f.PreVolta) > 0:
		return "GPU " + f.PreVolta[0] + " is older than Volta"
	case len(f.MIG) > 0:
		return "MIG is on, on GPU " + f.MIG[0]
	case dmem:
		return f.HookError
	}
	return ""
}
