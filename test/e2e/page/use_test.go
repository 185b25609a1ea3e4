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

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/fabrics"
)

const sharing = "node000002"

// shares is small, with two shared GPUs on a node: notebooks use one, the other is unhealthy as is a whole GPU.
func shares(t *testing.T) *rig {
	t.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 8, Dragonfly: 2, Switchbox: 4})
	r := start(t, f, func(i int, node *corev1.Node) {
		node.Labels = map[string]string{"pool": []string{"train", "serve"}[i/8]}
		if node.Name == sharing {
			shared(node)
		}
	}, func(i int) int { return []int{8, 8, 4, 0}[i%4] })
	for i, name := range []string{"notebook-a", "notebook-with-a-long-name-of-a-team-that-tells-all-about-it-0"} {
		share := allocation.Share{UUID: "GPU-6172ab2d", VCore: 30 - 10*i, MemoryMiB: 24576}
		bound := allocation.Bound{Version: allocation.Version, Node: sharing, Containers: map[string]allocation.Sharing{
			"main": {Shares: []allocation.Share{share}, Policy: "fixed-share", By: allocation.ByNode},
		}}
		r.api.Put("pods", &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "notebooks", Name: name, Annotations: map[string]string{wellknown.SGPUBound: bound.String()},
				CreationTimestamp: metav1.NewTime(time.Now().Add(-200 * time.Minute)),
			},
			Spec: corev1.PodSpec{NodeName: sharing}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	return r
}

// shared makes two of a node's eight GPUs shared ones.
func shared(node *corev1.Node) {
	node.Status.Allocatable[gpu] = resource.MustParse("6")
	const memory = 81559
	all := allocation.NodeGPUs{Version: allocation.Version, GPUs: []allocation.GPU{
		{
			UUID: "GPU-6172ab2d", Index: 6, MemoryMiB: memory, Slots: 16, Healthy: true, Policy: "fixed-share",
			Taken: allocation.Taken{VCore: 50, MemoryMiB: 49152, Slots: 2},
		},
		{UUID: "GPU-d1c0ffee", Index: 7, MemoryMiB: memory, Slots: 16, Reason: "XID 79: it has fallen off the bus"},
	}}
	node.Annotations = map[string]string{wellknown.SharedGPUs: all.String(), wellknown.CordonedGPUs: "GPU-0badf00d"}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
		Type: wellknown.ConditionDevices, Status: corev1.ConditionFalse, Reason: "Lost",
		LastTransitionTime: metav1.NewTime(time.Now().Add(-14 * time.Minute)),
		Message: "nvidia.com/gpu: 1 unavailable: GPU 3: fell off the bus. rdma/hca_shared_devices_ib: 2 unavailable: " +
			"mlx5_0, mlx5_1: port 1 is DOWN",
	})
}

// rows are the rows of lists and tables of a part of the details, as a person reads them.
func rows(b *browser, of string) []string {
	b.t.Helper()
	return value[[]string](b, `[...document.querySelectorAll('#detail `+of+`')].map((row) =>
		[...row.children].map((c) => c.innerText.trim()).filter(Boolean).join(' | '))`)
}

// The details of a node have its pods with their GPUs and shares by full names, and the health of each device with its reason.
func TestUseOfANode(t *testing.T) {
	r := shares(t)
	b := open(t, r.server.URL)
	b.load("/#" + sharing)
	b.until(`document.querySelectorAll('#detail .pods li').length === 3`)
	if diff := cmp.Diff([]string{
		"default/train-" + sharing + " | 4 GPUs",
		"notebooks/notebook-a | 3h20m | GPU 6: 30 %, 24 GiB, fixed-share",
		"notebooks/notebook-with-a-long-name-of-a-team-that-tells-all-about-it-0 | 3h20m | GPU 6: 20 %, 24 GiB, fixed-share",
	}, rows(b, ".pods li")); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"GPU-0badf00d | cordoned: no new pod gets it",
		"nvidia.com/gpu | 14m | 1 unavailable: GPU 3: fell off the bus",
		"rdma/hca_shared_devices_ib | 14m | 2 unavailable: mlx5_0, mlx5_1: port 1 is DOWN",
	}, rows(b, ".why:not(.pods, .history) li")); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"GPU 6 | 50 % | 48 of 79.6 GiB | 2 of 16", "fixed-share",
		"GPU 7 | 0 % | 0 of 79.6 GiB | 0 of 16", "XID 79: it has fallen off the bus",
	}, rows(b, ".shares tbody tr")); diff != "" {
		t.Errorf("shared GPUs (-want +got):\n%s", diff)
	}
	if got, want := value[string](b, `document.querySelector('[aria-label^="`+sharing+`"]').ariaLabel`), sharing+", 2 of 8 free, 2 shared"; got != want {
		t.Errorf("the node is called %q, want %q", got, want)
	}
	b.shot("use-light")
	// A pod that ends goes, although nothing in the map changes.
	r.api.Remove("pods", "notebooks", "notebook-a")
	b.until(`document.querySelectorAll('#detail .pods li').length === 2`)
	b.load("/?again#node000001")
	b.until(`document.querySelector('#detail').innerText.includes('No heddle-device-plugin reports the health of this node.')`)
	b.clean()
}

// lit are the nodes that a search or a filter leaves in color.
const lit = `[...document.querySelectorAll('#map.searching .node.hit')].map((n) => n.ariaLabel.split(',')[0].slice(-2)).join(' ')`

// put changes a filter as its user does.
func put(b *browser, key, text string) {
	b.t.Helper()
	value[any](b, `(() => { const f = document.querySelector('#filters [data-key=`+key+`]');
		f.focus(); f.value = '`+text+`'; f.dispatchEvent(new Event('change', { bubbles: true })); })()`)
}

// Filters leave the nodes of a product, a use, a namespace or labels in color; the address has them.
func TestFilters(t *testing.T) {
	b := open(t, shares(t).server.URL)
	b.load("/")
	for _, tt := range []struct{ key, value, want string }{
		{"use", "busy", "00 01 04 05 08 09 12 13"},
		{"use", "idle", "03 07 11 15"},
		{"use", "part", "02 06 10 14"},
		{"use", "shared", "02"},
		{"use", "", ""},
		{"ns", "notebooks", "02"},
		{"ns", "", ""},
		{"label", "pool=serve", "08 09 10 11 12 13 14 15"},
		{"use", "idle", "11 15"}, // Beside the label.
		{"label", "pool!=serve,pool", "03 07"},
		{"label", "", "03 07 11 15"},
		{"product", value[string](b, `[...document.querySelectorAll('#filters [data-key=product] option')].at(-1).value`), "03 07 11 15"},
	} {
		put(b, tt.key, tt.value)
		b.until(lit + ` === '` + tt.want + `'`)
	}
	if got := value[string](b, `decodeURIComponent(location.search)`); !strings.HasPrefix(got, "?q=use:idle+product:") {
		t.Errorf("the address of the filters is %q", got)
	}
	put(b, "label", "pool===x")
	b.until(`document.querySelector('#hits').textContent.includes('label: ')`)
	b.load("/?q=ns:notebooks+use:part")
	b.until(lit + ` === '02'`)
	if got := value[string](b, `document.querySelector('#filters [data-key=ns]').value`); got != "notebooks" {
		t.Errorf("the filter of the address shows %q", got)
	}
	b.shot("filters-light")
}

// While the scheduler rejects a gang, something is wrong, and a click on it shows why.
func TestRejectedGangIsAProblem(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 8, Dragonfly: 2, Switchbox: 4})
	r := start(t, f, nil, func(int) int { return 0 })
	b := open(t, r.server.URL)
	b.load("/")
	b.until(`document.querySelector('#faults').textContent.startsWith('Nothing is wrong: ')`)
	for i := range 3 {
		r.member("ai", "next", i, "", rejected("rejected by podgroup ai/next: 2 of 3 fit", 90*time.Second))
	}
	b.until(`document.querySelector('[data-kind=gang-rejected] .fault')`)
	if got := value[string](b, `document.querySelector('#faults').innerText`); strings.Contains(got, "Nothing is wrong") || !strings.Contains(got, "2 of 3 fit") {
		t.Errorf("problems:\n%s", got)
	}
	b.click(`[data-kind=gang-rejected] .fault`)
	b.until(`document.querySelector('#detail section[aria-label="Why it waits"]') !== null`)
	b.clean()
}
