package fabric_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
)

func TestReportKeepsAllButGPUs(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: []int{2, 2}, Rails: 4, Planes: 2, Domain: 2, Pod: 1, Dragonfly: 2, Switchbox: 1, Storage: 1})
	for i := range f.Nodes {
		spec := f.Nodes[i].Spec
		spec.Skipped = []v1alpha1.Skipped{{Name: "lldp", Reason: "no socket"}}
		spec.Rails[0].Switch, spec.Rails[0].GPUs = nil, []string{"GPU-1"}
		spec.Rails[1].Netdev = "eth0"
		spec.Rails[2].Since = new(metav1.NewTime(time.Unix(1_700_000_000, 0).UTC()))
		want := *spec.DeepCopy()
		r := read(&spec)
		want.Rails[0].GPUs = nil
		if diff := cmp.Diff(&want, r.Spec()); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		if r.Product() != "NVIDIA-H100-80GB-HBM3" {
			t.Error(r.Product())
		}
	}
}

// What differs in one thing is not equal.
func TestReportEqual(t *testing.T) {
	base := func() *v1alpha1.NodeTopologySpec {
		spec := onto("1", "2")
		spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-H20", Count: 8}}
		return spec
	}
	old := read(base())
	for name, change := range map[string]func(*v1alpha1.NodeTopologySpec){
		"path":         func(s *v1alpha1.NodeTopologySpec) { s.Path = []string{"a"} },
		"NVLink":       func(s *v1alpha1.NodeTopologySpec) { s.NVLinkDomain = "a.1" },
		"accelerators": func(s *v1alpha1.NodeTopologySpec) { s.Accelerators[0].Count = 7 },
		"state":        func(s *v1alpha1.NodeTopologySpec) { s.Rails[1].LinkState = v1alpha1.LinkDown },
		"switch":       func(s *v1alpha1.NodeTopologySpec) { s.Rails[0].Switch.ID = "3" },
		"no switch":    func(s *v1alpha1.NodeTopologySpec) { s.Rails[0].Switch = nil },
		"switch port":  func(s *v1alpha1.NodeTopologySpec) { s.Rails[0].SwitchPort = "swp9" },
		"GUID":         func(s *v1alpha1.NodeTopologySpec) { s.Rails[0].GUID = "946d:ae03:00e5:a3c0" },
		"fewer rails":  func(s *v1alpha1.NodeTopologySpec) { s.Rails = s.Rails[:1] },
	} {
		spec := base()
		change(spec)
		if now := read(spec); now.Equal(old) || old.Equal(now) {
			t.Errorf("another %s is equal", name)
		}
	}
	if !old.Equal(read(base())) {
		t.Error("equal reports are not equal")
	}
}

func TestGUID(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "nonsense": "", ":": "", "0000:0000:0000:0000": "", "946d:ae03:00e5:a3c0:0000": "",
		"946d:ae03:00e5:a3c0": "946d:ae03:00e5:a3c0", "946DAE0300E5A3C0": "946d:ae03:00e5:a3c0",
	} {
		spec := onto("1")
		spec.Rails[0].GUID = text
		if got := read(spec).Spec().Rails[0].GUID; got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
