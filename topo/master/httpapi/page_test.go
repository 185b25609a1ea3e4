package httpapi

import (
	"strings"
	"testing"
)

// TestPageHasThePolicy: a server that sends no policy is not the end of it.
func TestPageHasThePolicy(t *testing.T) {
	// A meta element cannot restrict framing.
	inside, _, _ := strings.Cut(policy, "; frame-ancestors")
	index, err := page.ReadFile("ui/index.html")
	if err != nil || !strings.Contains(string(index), `content="`+inside+`"`) {
		t.Errorf("%v: index.html does not have the policy %q", err, inside)
	}
}
