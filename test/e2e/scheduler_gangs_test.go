//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

const (
	inOneLeaf = "heddle.dev/gang-required-level"
)

// later runs a pod that came after all others: they have had their turn.
func (f *fleet) later(t *testing.T, name string) {
	t.Helper()
	p := f.pod(name, 0, nil)
	p.Spec.SchedulerName = schedulerName
	f.create(t, p)
	f.running(t, name, 1)
}

// uids distinguish pods of one name.
func (f *fleet) uids(t *testing.T, prefix string) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for _, p := range f.podsOf(t, prefix) {
		all[p.Name] = p.UID
	}
	return all
}

// again waits until there are n pods, all of them run, and those named are new.
func (f *fleet) again(t *testing.T, prefix string, n int, before map[string]types.UID, renewed ...string) {
	t.Helper()
	eventually(t, func() string {
		now := f.uids(t, prefix)
		for _, name := range renewed {
			if now[name] == "" || now[name] == before[name] {
				return name + " is not made again"
			}
		}
		return ""
	})
	f.running(t, prefix, n)
}

// priority makes a priority class.
func (f *fleet) priority(t *testing.T, value int) (class string) {
	t.Helper()
	class = fmt.Sprintf("p%d-%s", value, f.namespace)
	f.kubectl(t, "create", "priorityclass", class, fmt.Sprintf("--value=%d", value))
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "priorityclass", class) })
	return class
}
