//go:build e2e && linux

package devices

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// dgx is the rig that most tests share.
func dgx(t *testing.T) *rig {
	return sharedRig(t, options{name: "dgx", gates: map[string]bool{"ResourceHealthStatus": true}})
}

// TestPodSeesExactlyItsDevices: four GPUs and four HCAs can be opened, by their
// node in /dev, by the host's node and by one that the container makes. None of
// the others can, not even from a hostPath. A container that asked for nothing
// can open nothing.
func TestPodSeesExactlyItsDevices(t *testing.T) {
	r := dgx(t)
	p := r.pod("exact", box{gpus: 4, hcas: 4})
	p.Spec.Containers = append(p.Spec.Containers, box{name: "bystander"}.container(), box{name: "rdma", hcas: 1}.container())
	r.run(t, p)

	s := r.has(t, "exact", "app", 4, 4)
	if s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q", s.Env["NVIDIA_VISIBLE_DEVICES"])
	}
	if d := s.Devices; d.Namespace != namespace || d.Pod != "exact" || d.Container != "app" {
		t.Errorf("the devices file is of %s/%s/%s", d.Namespace, d.Pod, d.Container)
	}
	r.has(t, "exact", "rdma", 0, 1)
	if b := r.sees(t, "exact", "bystander"); len(b.GPUs)+len(b.HCAs) > 0 || b.CM || b.Devices != nil {
		t.Errorf("a container that asked for nothing sees %+v", b)
	}
	// What it saw at its start holds while it runs, also for exec.
	for _, container := range []string{"app", "rdma", "bystander"} {
		start := r.sees(t, "exact", container)
		now, err := interpret(r.ask(t, "exact", container), r.machine(t))
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([][]string{start.GPUs, start.HCAs}, [][]string{now.GPUs, now.HCAs}); diff != "" {
			t.Errorf("%s: exec sees others (-start +exec):\n%s", container, diff)
		}
	}
}

// TestHCAsAreBesideTheGPUs takes GPUs away, so that the pod has no choice, and
// looks which HCAs come with the others. Health is what takes them away.
func TestHCAsAreBesideTheGPUs(t *testing.T) {
	choices := [][]int{{0, 2, 5, 7}, {1, 3, 4, 6}, {1, 4}, {6}}
	t.Run("dgx-h100", func(t *testing.T) { everyChoice(t, dgx(t), choices) })
	t.Run("h200-scrambled-nics", func(t *testing.T) {
		everyChoice(t, newRig(t, options{name: "scrambled", machine: "h200-scrambled-nics"}), choices)
	})
}

func everyChoice(t *testing.T, r *rig, choices [][]int) {
	whole := r.machine(t)
	// Between two choices all are there, so that their numbers distinguish them.
	restore := func() {
		if err := r.writeMachine(whole); err != nil {
			t.Error(err)
		}
		r.waitOffered(t, gpuResource, len(whole.GPUs))
	}
	defer restore()
	for _, choice := range choices {
		m := r.machine(t)
		var want []string
		for i := range m.GPUs {
			m.GPUs[i].Health = machine.Health{State: machine.Lost, Reason: "taken away by the test"}
			if slices.Contains(choice, i) {
				m.GPUs[i].Health = machine.Health{State: machine.Healthy}
				want = append(want, m.GPUs[i].UUID)
			}
		}
		if err := r.writeMachine(m); err != nil {
			t.Fatal(err)
		}
		r.waitOffered(t, gpuResource, len(choice))
		r.run(t, r.pod("choice", box{gpus: len(choice), hcas: len(choice)}))
		s := r.has(t, "choice", "app", len(choice), len(choice))
		slices.Sort(want)
		if diff := cmp.Diff(want, s.GPUs); diff != "" {
			t.Errorf("%v: GPUs (-want +got):\n%s", choice, diff)
		}
		hcas, classes := nearest(m, choice)
		if diff := cmp.Diff(hcas, s.HCAs); diff != "" {
			t.Errorf("%v: HCAs (-nearest +got):\n%s", choice, diff)
		}
		reported := map[string]string{}
		for _, g := range s.Devices.GPUs {
			reported[g.UUID] = g.HCA + " " + g.Class
		}
		if diff := cmp.Diff(classes, reported); diff != "" {
			t.Errorf("%v: nearest HCA and class of each GPU (-topo/affinity +file):\n%s", choice, diff)
		}
		for _, b := range r.bindings(t)["choice/app"] {
			if b.Resource == hcaResource && b.Class != "PIX" {
				t.Errorf("%v: the record has class %q", choice, b.Class)
			}
		}
		r.remove(t, "choice")
		restore()
	}
}

// nearest is what topo/affinity computes for GPUs that each have one HCA next to
// them: those HCAs, and by UUID the HCA and the class.
func nearest(m *machine.Machine, gpus []int) (hcas []string, classes map[string]string) {
	x := affinity.Of(m)
	classes = map[string]string{}
	for row, d := range x.Devices {
		if !d.GPU || !slices.Contains(gpus, d.Index) {
			continue
		}
		for _, at := range first(x.Nearest(row, affinity.IsFabricHCA)) {
			hcas = append(hcas, x.Devices[at].Name)
			classes[m.GPUs[d.Index].UUID] = x.Devices[at].Name + " " + x.At(row, at).String()
		}
	}
	slices.Sort(hcas)
	return hcas, classes
}

func first[A, B any](a A, _ B) A { return a }
