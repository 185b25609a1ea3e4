//go:build e2e

package page

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// A group lists its nodes under the status that they have: a degraded one is not
// under "Not ready".
func TestStatusesOfAGroup(t *testing.T) {
	r := small(t)
	port := &r.fabric.Nodes[8].Spec.Rails[5]
	port.LinkState, port.Switch, port.SwitchPort = v1alpha1.LinkDown, nil, ""
	r.report(8, time.Now())
	b := open(t, r.server.URL)
	b.load("/#/switchbox:switchbox-1/dragonfly:dragonfly-4")
	b.until(`document.querySelector('#detail .why[data-s=degraded] .link')`)
	got := value[[]string](b, `[...document.querySelectorAll('#detail .why')].map((list) =>
		[list.previousElementSibling.textContent, ...[...list.children].map((e) => e.textContent)].join(' | '))`)
	if diff := cmp.Diff([]string{"Not ready | node000009node not ready", "Degraded | node0000081 dead port"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.clean()
}
