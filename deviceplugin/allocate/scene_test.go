package allocate

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// scene is a container that asks for shares, on a node with others.
type scene struct {
	name   string
	change func(*config.NodeConfig)
	// taken are the shares of other pods by GPU.
	taken map[int]string
	// ask is what it asks for, ids the GPUs that its device IDs name, cpus the
	// processors that it has to itself.
	ask  string
	ids  []int
	cpus []int64
	// annotations are the pod's, scheduler its scheduler.
	annotations func(*rig) map[string]string
	scheduler   string

	want    []int
	by      string
	kind    string // of the rejection
	reason  string
	never   bool
	warning string
}

// never reports whether an error means that the node can never give a container that.
func never(err error) bool {
	r, is := errors.AsType[*RejectedError](err)
	return is && r.Never
}

func (s *scene) run(t *testing.T) {
	r := shareRig(t, s.change)
	for gpu, text := range s.taken {
		r.take("taken-"+itoa(gpu), text, gpu)
	}
	var annotations map[string]string
	if s.annotations != nil {
		annotations = s.annotations(r)
	}
	p := r.wants("a", annotations, inventorytest.Sharer("main", s.ask))
	p.Spec.NodeName, p.Spec.SchedulerName = "gpu-1", s.scheduler
	var ids []string
	for i, gpu := range s.ids {
		ids = append(ids, r.slot(gpu, 8+i))
	}
	if ids == nil {
		ids = []string{r.slot(1, 8)}
	}
	r.allocate("a", "main", slots, ids...)
	r.listed("a", "main").CpuIds = s.cpus
	for range 2 { // It may start again.
		_, err := r.start("a", "main")
		r.nothingOvercommitted()
		if s.kind != "" || s.reason != "" {
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(s.reason)) || rejected(err) != s.kind ||
				(s.never || s.kind == RejectedRequest) != never(err) {
				t.Errorf("rejected for %s: %v\nwant %s: %s", rejected(err), err, s.kind, s.reason)
			}
			if got := r.gpusOf(); got != nil {
				t.Errorf("it has GPUs %v", got)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.want, r.gpusOf()); diff != "" {
			t.Errorf("GPUs (-want +got):\n%s", diff)
		}
	}
	for _, e := range r.entries {
		if e.Owner != nil && e.Owner.Pod.Name == "a" && s.by != "" && e.By != s.by {
			t.Errorf("chosen by %s, want %s", e.By, s.by)
		}
	}
	got := r.warned()
	if s.warning == "" && len(got) > 0 || s.warning != "" && (len(got) != 1 || !strings.Contains(got[0], s.warning)) {
		t.Errorf("warnings %q, want %q", got, s.warning)
	}
}
