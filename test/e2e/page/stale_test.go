//go:build e2e

package page

import (
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/fabrics"
)

func TestShowsWhenItIsOld(t *testing.T) {
	r := small(t)
	b := open(t, r.server.URL)
	b.load("/")
	b.until(`document.querySelector('#live').dataset.phase === 'live'`)
	address := r.server.Listener.Addr().String()
	r.away()
	b.until(`!document.querySelector('#old').hidden`)
	if got := value[string](b, `document.querySelector('#old').innerText`); !strings.Contains(got, "What you see is ") {
		t.Errorf("without a server the page shows %q", got)
	}
	b.shot("16-light-old")
	// What happened meanwhile is there at once.
	r.api.Remove("pods", "default", "train-node000000")
	r.listen(t, address)
	b.click("#retry")
	b.until(`document.querySelector('#old').hidden && document.querySelector('[aria-label^="node000000, 8 of 8 free"]')`)
	b.until(`document.querySelector('#live').dataset.phase === 'live'`)
}

// A server that answers and does not know the present reports it.
func TestShowsWhenTheMapIsStale(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 8, Dragonfly: 2, Switchbox: 4})
	r := start(t, f, nil, func(int) int { return 8 }, 10*time.Minute)
	b := open(t, r.server.URL)
	b.load("/")
	b.until(`document.querySelector('#live').dataset.phase === 'live'`)
	if hidden := value[bool](b, `document.querySelector('#old').hidden`); !hidden {
		t.Error("the page calls a map old that is not")
	}
	r.api.Down(true)
	r.behind.Store(0) // Ten minutes pass.
	b.until(`document.querySelector('#live').dataset.phase === 'stale'`)
	if got := value[string](b, `document.querySelector('#old').innerText`); got != "The server has had no contact with the Kubernetes API for 10m. What you see is that old." {
		t.Errorf("without an API server the page shows %q", got)
	}
	if live := value[string](b, `document.querySelector('#live').innerText`); live != "Stale" {
		t.Errorf("and %q", live)
	}
	b.shot("16-light-stale")
	r.api.Remove("pods", "default", "train-node000000")
	r.api.Down(false)
	b.until(`document.querySelector('#old').hidden && document.querySelector('#live').dataset.phase === 'live'`)
	b.until(`document.querySelector('[aria-label^="node000000, 8 of 8 free"]')`)
	b.clean()
}
