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

// The button that lists the keys is there on a window of 800 pixels, in the bar,
// and not on a phone.
func TestHelpOnANarrowWindow(t *testing.T) {
	b := open(t, small(t).server.URL)
	for _, width := range []int64{1280, 800, 500} {
		b.size(width, 800)
		b.load("/")
		b.until(`document.querySelector('#live').dataset.phase === 'live'`)
		if wide := value[int64](b, `document.documentElement.scrollWidth`); wide > width {
			t.Errorf("the page is %d pixels wide on a window of %d", wide, width)
		}
		if inside := value[bool](b, `document.querySelector('.bar').getBoundingClientRect().bottom
			>= document.querySelector('#help').getBoundingClientRect().bottom`); !inside {
			t.Errorf("at %d pixels the button is below the bar", width)
		}
		b.click("#help")
		b.until(`document.querySelector('#keys').open`)
	}
	b.size(390, 844)
	b.load("/?phone")
	if shown := value[bool](b, `document.querySelector('#help').checkVisibility()`); shown {
		t.Error("a phone shows the button for keys")
	}
	b.clean()
}
