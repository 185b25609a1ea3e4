//go:build e2e

package page

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
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

// The worker reports when a cable became what it is; the page shows that age, and
// not since when it looks.
func TestShowsSinceWhen(t *testing.T) {
	r := small(t)
	b := open(t, r.server.URL)
	b.load("/")
	rails := r.fabric.Nodes[3].Spec.Rails
	rails[5].LinkState, rails[5].Since = v1alpha1.LinkDown, new(metav1.NewTime(time.Now().Add(-3*time.Hour-20*time.Minute)))
	rails[6].Switch, rails[6].Since = new(r.fabric.Leaf(2, 6, 0)), new(metav1.NewTime(time.Now().Add(-50*time.Hour)))
	r.report(3, time.Now())
	for kind, want := range map[string]string{"dead": "3 h 20 min", "miscabled": "2 d"} {
		b.until(`document.querySelector('[data-kind=` + kind + `] time')?.textContent === '` + want + `'`)
	}
	b.shot("16-light-since")
	b.click("[data-kind=dead] .fault")
	b.until(`document.querySelector('#detail .why')?.innerText.includes('3 h 20 min')`)
	// It is repaired, and breaks again.
	rails[5].Since = new(metav1.NewTime(time.Now().Add(-61 * time.Second)))
	r.report(3, time.Now())
	b.until(`document.querySelector('[data-kind=dead] time').textContent === '1 min'`)
	b.clean()
}

// GPUs that are there and that no kubelet offers are neither free nor in use.
func TestShowsWhatIsNotOffered(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 8, Dragonfly: 2, Switchbox: 4})
	r := start(t, f, func(i int, node *corev1.Node) {
		switch i {
		case 2:
			node.Status.Allocatable[gpu] = resource.MustParse("6")
		case 5:
			node.Status.Allocatable = nil
		}
	}, func(i int) int { return []int{0, 0, 4, 8}[i%4] })
	b := open(t, r.server.URL)
	b.load("/")
	type shown struct{ Summary, Some, None, Group, Whole string }
	label := func(name string) string { return `document.querySelector('[aria-label^="` + name + `,"]').ariaLabel` }
	got := value[shown](b, `({
		Summary: document.querySelector('#sum .gpus').innerText.replace(/\s+/g, ' ').trim(),
		Some: `+label("node000002")+`, None: `+label("node000005")+`, Group: `+label("dragonfly-1")+`, Whole: `+label("node000000")+`,
	})`)
	want := shown{
		Summary: "70 of 128 GPUs free 10 not offered",
		Some:    "node000002, 2 of 8 free, 2 not offered",
		None:    "node000005, 0 of 8 free, 8 not offered",
		Group:   "dragonfly-1, 2 nodes, 2 of 16 free, 2 not offered",
		Whole:   "node000000, 8 of 8 free",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	b.shot("16-light-not-offered")
	// The device plugin comes back.
	r.api.Put("nodes", kubeNode("node000005"))
	b.until(label("node000005") + ` === 'node000005, 8 of 8 free'`)
	b.until(`document.querySelector('#sum .idle').textContent === '2 not offered'`)
	b.clean()
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
	if got := value[string](b, `document.querySelector('#old').innerText`); got != "The server has had no contact with the Kubernetes API for 10 min. What you see is that old." {
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
