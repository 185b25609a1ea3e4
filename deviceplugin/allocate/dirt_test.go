package allocate

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

func TestDirt(t *testing.T) {
	const gib, idle = int64(1) << 30, int64(256) << 20
	process := func(pid int, change ...func(*Occupant)) Occupant {
		o := Occupant{Process: gpu.Process{PID: pid, Bytes: 2 * gib}, Command: "python", Pod: "a"}
		for _, f := range change {
			f(&o)
		}
		return o
	}
	ended := func(o *Occupant) { o.Ended = true }
	host := func(o *Occupant) { o.Pod = "" }
	passive := func(o *Occupant) { o.Passive, o.Bytes = true, 0 }
	unknown := func(o *Occupant) { o.Bytes = -1 }
	named := func(command string) func(*Occupant) { return func(o *Occupant) { o.Pod, o.Command = "", command } }
	for _, tt := range []struct {
		name  string
		on    []Occupant
		used  int64
		users string
		want  string
	}{
		{"nothing", nil, 4 << 20, "", ""},
		{"nothing, and the driver reports no memory", nil, -1, "", ""},
		{"a process of a pod that has ended", []Occupant{process(1, ended)}, 2 * gib, "", "process 1 (python) of pod a with 2048 MiB"},
		{"the same, beside the consumers of a shared GPU", []Occupant{process(1, ended)}, 9 * gib, "b", "process 1 (python) of pod a with 2048 MiB"},
		{"one that only has the GPU open", []Occupant{process(1, ended, passive)}, -1, "b", "process 1 (python) of pod a with 0 MiB"},
		{"a consumer that the API server does not show", []Occupant{process(1, ended)}, 2 * gib, "a", ""},
		{"a consumer", []Occupant{process(1)}, 2 * gib, "a", ""},
		{"a pod that runs, such as an agent, with its memory", []Occupant{process(1)}, 2*gib + idle, "", ""},
		{"with memory that it has not", []Occupant{process(1)}, 3 * gib, "", "1024 MiB of no visible process"},
		{"with memory that it may have", []Occupant{process(1, unknown)}, 3 * gib, "", ""},
		{"a process of the host", []Occupant{process(1, host)}, 2 * gib, "", "process 1 (python) of pod none with 2048 MiB"},
		{"the same, beside consumers that it may belong to", []Occupant{process(1, host)}, 2 * gib, "b", ""},
		{"one that draws", []Occupant{process(1, host, passive)}, -1, "", ""},
		{"MPS, DCGM and AMD's agent", []Occupant{
			process(1, named("nvidia-cuda-mps")), process(2, named("nv-hostengine")), process(3, named("gpuagent")),
		}, 6 * gib, "", ""},
		{"memory that nobody has", nil, 45 * gib, "", "46080 MiB of no visible process"},
		{"memory that nobody has, beside consumers", nil, 45 * gib, "b", ""},
		{"as much as an idle GPU", nil, idle, "", ""},
		{"two of ended pods", []Occupant{process(1, ended), process(2), process(3, ended, unknown)}, -1, "", "process 1 (python) of pod a with 2048 MiB, process 3 (python) of pod a with 0 MiB"},
	} {
		users := map[string]bool{}
		if tt.users != "" {
			users[tt.users] = true
		}
		what, unseen := Dirt(tt.on, tt.used, idle, users)
		if what != tt.want || unseen != strings.HasSuffix(tt.want, "of no visible process") {
			t.Errorf("%s: %q, unseen %t, want %q", tt.name, what, unseen, tt.want)
		}
	}
}
