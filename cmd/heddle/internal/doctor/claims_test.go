package doctor

import (
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

func TestClaims(t *testing.T) {
	class := func(name string) *resourcev1.DeviceClass {
		return &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("nvidia.com/gpu")},
		}
	}
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec:       resourcev1.ResourceSliceSpec{Driver: claims.Driver, NodeName: new("gpu-1"), Devices: []resourcev1.Device{{Name: "gpu-a"}}},
	}
	const noSlice = "no ResourceSlice of devices.heddle.dev has a device of this node"
	for name, tt := range map[string]struct {
		mode    string
		slices  []*resourcev1.ResourceSlice
		classes []*resourcev1.DeviceClass
		want    []string
	}{
		"as it should be": {"claims", []*resourcev1.ResourceSlice{slice}, []*resourcev1.DeviceClass{class("gpu.heddle.dev")}, nil},
		"another mode":    {"native", nil, nil, nil},
		"without slices":  {"claims", nil, []*resourcev1.DeviceClass{class("gpu.heddle.dev")}, []string{noSlice}},
		"without classes": {"claims", []*resourcev1.ResourceSlice{slice}, nil, []string{"is missing, and GPUs are for claims"}},
		"two classes for the resource": {
			mode: "claims", slices: []*resourcev1.ResourceSlice{slice},
			classes: []*resourcev1.DeviceClass{class("gpu.heddle.dev"), class("gpu.example.com")},
			want:    []string{"other classes stand for nvidia.com/gpu too: gpu.example.com"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "ConfigMap", Plural: "configmaps"},
				apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "ResourceSlice", Plural: "resourceslices"},
				apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "DeviceClass", Plural: "deviceclasses"})
			node := h20Node()
			node.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
			api.Put("nodes", node)
			for _, s := range tt.slices {
				api.Put("resourceslices", s)
			}
			for _, c := range tt.classes {
				api.Put("deviceclasses", c)
			}
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			dir := directory(t, map[string]string{"version": "v1", "cluster-config": "mode: " + tt.mode + "\n"})
			out, err := doctor(t, "--node", "gpu-1", "--config", dir, "--kubeconfig", clitest.Kubeconfig(t, server.URL))
			if reported := strings.Contains(out, "lists no devices"); reported == (tt.mode == "claims") {
				t.Errorf("the resource that is 0 is reported: %t", reported)
			}
			for _, text := range append(tt.want, noSlice, "is missing, and mode", "other classes stand") {
				wanted := false
				for _, w := range tt.want {
					wanted = wanted || strings.Contains(w, text)
				}
				if strings.Contains(out, text) != wanted {
					t.Errorf("%v: %q is there: %t, in\n%s", err, text, !wanted, out)
				}
			}
		})
	}
}

// An API server that knows less of DRA is a note: nothing is wrong with the node.
func TestClaimsOnAnOldAPIServer(t *testing.T) {
	var l Findings
	checkPlugin(&l, &report.Report{Problems: []report.Problem{
		{Name: report.ClaimsPlain, Reason: "the API server drops fields"}, {Name: "claims-kubelet", Reason: "the kubelet rejects the DRA driver: x"},
	}})
	all, problems := l.sorted()
	if problems != 1 || len(all) != 2 || all[0].Remedy == "" || all[1].Message != "the API server drops fields" {
		t.Errorf("%d problems in %+v", problems, all)
	}
}
