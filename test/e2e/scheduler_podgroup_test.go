//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"
)

// labeledGroup is the field of a PodGroup at the path; "" if there is none.
func (f *fleet) labeledGroup(t *testing.T, name, path string) string {
	t.Helper()
	return f.kubectl(t, "-n", f.namespace, "get", "podgroups.scheduling.x-k8s.io", name, "--ignore-not-found", "-o", "jsonpath="+path)
}

// shows waits until a PodGroup shows this.
func (f *fleet) shows(t *testing.T, name, path, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := f.labeledGroup(t, name, path); got != want {
			return fmt.Sprintf("%s of %s is %q, want %q", path, name, got, want)
		}
		return ""
	})
}
