package resource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
)

func TestSelectorOf(t *testing.T) {
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        resource.Selector
		fails       string
	}{
		{"none", nil, resource.Selector{}, ""},
		{"empty", map[string]string{"nvidia.com/use-gpuuuid": " , "}, resource.Selector{}, ""},
		{
			"both",
			map[string]string{"nvidia.com/use-gpuuuid": "GPU-2, GPU-1,GPU-2", "nvidia.com/nouse-gpuuuid": "GPU-3"},
			resource.Selector{Use: []string{"GPU-1", "GPU-2"}, Avoid: []string{"GPU-3"}},
			"",
		},
		{"alias", map[string]string{"metax-tech.com/nouse-gpuuuid": "GPU-3"}, resource.Selector{Avoid: []string{"GPU-3"}}, ""},
		{
			"the same twice",
			map[string]string{"nvidia.com/use-gpuuuid": "GPU-1,GPU-2", "metax-tech.com/use-gpuuuid": "GPU-2,GPU-1"},
			resource.Selector{Use: []string{"GPU-1", "GPU-2"}},
			"",
		},
		{
			"two answers",
			map[string]string{"nvidia.com/use-gpuuuid": "GPU-1", "metax-tech.com/use-gpuuuid": "GPU-2"},
			resource.Selector{},
			"nvidia.com/use-gpuuuid and metax-tech.com/use-gpuuuid",
		},
	} {
		got, err := resource.SelectorOf(test.annotations, wellknown.DefaultDomains())
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.fails)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestSelectorCheck(t *testing.T) {
	m := cut(machineWith(2), 1, "1g.10gb", 2)
	for _, test := range []struct {
		name  string
		steer resource.Selector
		ids   []string
		want  string
	}{
		{"nothing asked", resource.Selector{}, []string{"GPU-0"}, ""},
		{"what was asked", resource.Selector{Use: []string{"GPU-0"}}, []string{"GPU-0"}, ""},
		{"a MIG device of it", resource.Selector{Use: []string{"GPU-1"}}, []string{"MIG-1-1"}, ""},
		{"another", resource.Selector{Use: []string{"GPU-1"}}, []string{"GPU-0"}, "does not accept GPU GPU-0"},
		{"a rejected one", resource.Selector{Avoid: []string{"GPU-1"}}, []string{"MIG-1-0"}, "does not accept GPU MIG-1-0"},
		{"rejected elsewhere", resource.Selector{Avoid: []string{"GPU-9"}}, []string{"GPU-0"}, ""},
		{"unknown", resource.Selector{Use: []string{"GPU-0", "GPU-9"}}, []string{"GPU-0"}, `no GPU "GPU-9"; it has GPU-0, GPU-1`},
	} {
		err := test.steer.Check(m, test.ids)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
	var many resource.Selector
	for i := range 43000 { // As many as an annotation has room for.
		many.Use = append(many.Use, fmt.Sprintf("%05d", i))
	}
	want := `the node has no GPU "00000", "00001", "00002" and 42997 more; it has GPU-0, GPU-1
the pod does not accept GPU GPU-0`
	if err := many.Check(m, []string{"GPU-0"}); err == nil || err.Error() != want {
		t.Errorf("error %.300v, want %s", err, want)
	}
	if !(resource.Selector{}).None() || (resource.Selector{Avoid: []string{"x"}}).None() {
		t.Error("None is wrong")
	}
}
