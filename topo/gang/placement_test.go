package gang_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

func TestReadPlacement(t *testing.T) {
	key := types.NamespacedName{Namespace: "default", Name: "train"}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		want        gang.Spec
		fault       string
	}{
		{"nothing", nil, gang.Spec{Key: key}, ""},
		{"all", map[string]string{
			"metax-tech.com/gpu-group-size": "64", "heddle.dev/gang-required-level": "spine",
			"heddle.dev/gang-preferred-level": "leaf", "heddle.dev/gang-without-map": "wait",
		}, gang.Spec{Key: key, GroupSize: 64, Required: "spine", Preferred: "leaf", WithoutMap: gang.Wait}, ""},
		// The name and the size are in fields.
		{"other keys of a gang", map[string]string{
			"gang.scheduling.koordinator.sh/name": "other", "gang.scheduling.koordinator.sh/min-available": "nine",
		}, gang.Spec{Key: key}, ""},
		{
			"two sizes",
			map[string]string{"nvidia.com/gpu-group-size": "8", "metax-tech.com/gpu-group-size": "16"},
			gang.Spec{Key: key, GroupSize: 8},
			`annotation nvidia.com/gpu-group-size is "8" and annotation metax-tech.com/gpu-group-size is "16"`,
		},
		{
			"no policy",
			map[string]string{"heddle.dev/gang-without-map": "guess"},
			gang.Spec{Key: key, WithoutMap: "guess"},
			`annotation heddle.dev/gang-without-map: "guess" is neither wait nor place`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := gang.ReadPlacement(key, tt.annotations, wellknown.DefaultDomains())
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text := ""; err != nil || tt.fault != "" {
				if err != nil {
					text = err.Error()
				}
				if diff := cmp.Diff(tt.fault, text); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
			}
		})
	}
}
