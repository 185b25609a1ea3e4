package resource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func TestSelectorCheck(t *testing.T) {
	m := cut(machineWith(2), 1, "1g.10gb", 2)
	for _, test := range []struct {
		name  string
		steer quota.Selector
		ids   []string
		want  string
	}{
		{"nothing asked", quota.Selector{}, []string{"GPU-0"}, ""},
		{"what was asked", quota.Selector{Use: []string{"GPU-0"}}, []string{"GPU-0"}, ""},
		{"a MIG device of it", quota.Selector{Use: []string{"GPU-1"}}, []string{"MIG-1-1"}, ""},
		{"another", quota.Selector{Use: []string{"GPU-1"}}, []string{"GPU-0"}, "does not accept GPU GPU-0"},
		{"a rejected one", quota.Selector{Avoid: []string{"GPU-1"}}, []string{"MIG-1-0"}, "does not accept GPU MIG-1-0"},
		{"rejected elsewhere", quota.Selector{Avoid: []string{"GPU-9"}}, []string{"GPU-0"}, ""},
		{"unknown", quota.Selector{Use: []string{"GPU-0", "GPU-9"}}, []string{"GPU-0"}, `no GPU GPU-9; it has GPU-0, GPU-1`},
	} {
		err := resource.CheckSelector(test.steer, m, test.ids)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
	var many quota.Selector
	for i := range 43000 { // As many as an annotation has room for.
		many.Use = append(many.Use, fmt.Sprintf("%05d", i))
	}
	want := `the node has no GPU 00000, 00001, 00002, 42997 more; it has GPU-0, GPU-1
the pod does not accept GPU GPU-0`
	if err := resource.CheckSelector(many, m, []string{"GPU-0"}); err == nil || err.Error() != want {
		t.Errorf("error %.300v, want %s", err, want)
	}
}
