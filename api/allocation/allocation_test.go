package allocation_test

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/test/annotationtest"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

func TestAllocationText(t *testing.T) {
	want := &allocation.Allocation{Version: 1, Node: "n1", Containers: map[string][]allocation.Share{
		"init": {{UUID: "GPU-a", VCore: 0, MemoryMiB: 512}},
		"main": {{UUID: "GPU-a", VCore: 60, MemoryMiB: 4096}, {UUID: "GPU-b", VCore: 60, MemoryMiB: 4096}},
	}}
	const text = `{"version":1,"node":"n1","containers":{"init":[{"uuid":"GPU-a","vcore":0,"memoryMiB":512}],` +
		`"main":[{"uuid":"GPU-a","vcore":60,"memoryMiB":4096},{"uuid":"GPU-b","vcore":60,"memoryMiB":4096}]}}`
	if got := want.String(); got != text {
		t.Errorf("text is %s\nwant %s", got, text)
	}
	got, err := allocation.ParseAllocation(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBoundText(t *testing.T) {
	want := &allocation.Bound{Version: 1, Node: "n1", Containers: map[string]allocation.Sharing{
		"main": {Shares: []allocation.Share{{UUID: "GPU-a", VCore: 60, MemoryMiB: 4096}}, Policy: "burst-share", By: allocation.ByNode},
	}}
	const text = `{"version":1,"node":"n1","containers":{"main":{"shares":[{"uuid":"GPU-a","vcore":60,"memoryMiB":4096}],` +
		`"policy":"burst-share","by":"node"}}}`
	if got := want.String(); got != text {
		t.Errorf("text is %s\nwant %s", got, text)
	}
	got, err := allocation.ParseBound(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNodeGPUsText(t *testing.T) {
	want := &allocation.NodeGPUs{Version: 1, GPUs: []allocation.GPU{
		{
			UUID: "GPU-a", MemoryMiB: 81559, Slots: 16, NUMA: new(0), Zone: 1, Healthy: true, Policy: "fixed-share",
			Taken: allocation.Taken{VCore: 60, MemoryMiB: 4096, Slots: 1},
		},
		{UUID: "GPU-b", Index: 1, MemoryMiB: 81559, Slots: 16, Reason: "XID 79", Exclusive: true},
	}}
	const text = `{"version":1,"cards":[{"uuid":"GPU-a","index":0,"memoryMiB":81559,"slots":16,"numa":0,"zone":1,"healthy":true,` +
		`"policy":"fixed-share","taken":{"vcore":60,"memoryMiB":4096,"slots":1}},{"uuid":"GPU-b","index":1,"memoryMiB":81559,` +
		`"slots":16,"numa":null,"zone":0,"healthy":false,"reason":"XID 79","exclusive":true,"taken":{"vcore":0,"memoryMiB":0,"slots":0}}]}`
	if got := want.String(); got != text {
		t.Errorf("text is %s\nwant %s", got, text)
	}
	got, err := allocation.ParseNodeGPUs(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInvalid: the file has texts, and what is wrong with each.
func TestInvalid(t *testing.T) {
	golden.Rows(t, "testdata/invalid.txt", *update, func(text string) string {
		var err error
		switch {
		case strings.Contains(text, `"cards"`):
			_, err = allocation.ParseNodeGPUs(text)
		case strings.Contains(text, `"by"`):
			_, err = allocation.ParseBound(text)
		default:
			var got *allocation.Allocation
			if got, err = allocation.ParseAllocation(text); got != nil {
				t.Errorf("%s is %+v", text, got)
			}
		}
		if err == nil {
			return "no error"
		}
		return err.Error()
	})
	many := `{"version":1,"node":"n1","containers":{"main":[` + strings.Repeat(`{"uuid":"GPU-a"},`, 64) + `{"uuid":"GPU-a"}]}}`
	for text, want := range map[string]string{
		many: `allocation: container "main": 65 shares; a container has 1 to 64`, strings.Repeat(" ", 256<<10) + "{}": "allocation: longer than 262144 bytes",
	} {
		if _, err := allocation.ParseAllocation(text); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// An error of encoding/json repeats the name of a field, or a number, whole.
func TestLongErrors(t *testing.T) {
	long := strings.Repeat("1", 200<<10)
	for _, text := range []string{
		`{"version":1,"` + long + `":1}`, `{"version":` + long + `}`, `{"version":1,"node":` + long + `}`, `"` + long,
		`{"version":1,"node":"n","containers":{"` + long + `":[]}}`,
	} {
		if _, err := allocation.ParseAllocation(text); err == nil || len(err.Error()) > 400 {
			t.Errorf("%.30s: an error of %d bytes", text, len(fmt.Sprint(err)))
		}
	}
}

func TestFreeGPUs(t *testing.T) {
	const text = `{"version":1,"held":2,"free":[{"uuid":"GPU-a"},{"uuid":"MIG-b","of":"GPU-c"}]}`
	want := &allocation.FreeGPUs{Version: 1, Held: 2, Free: []allocation.FreeGPU{{UUID: "GPU-a"}, {UUID: "MIG-b", Of: "GPU-c"}}}
	got, err := allocation.ParseFreeGPUs(text)
	if diff := cmp.Diff(want, got); diff != "" || err != nil || want.String() != text {
		t.Errorf("error %v, text %s (-want +got):\n%s", err, want, diff)
	}
	for _, tt := range []struct{ text, err string }{
		{``, "free GPUs: empty"},
		{`{"version":2,"held":0,"free":[]}`, "free GPUs: version 2 is unknown, 1 is known"},
		{`{"version":1,"held":-1,"free":[]}`, "free GPUs: held: -1 is not between 0 and 448"},
		{`{"version":1,"held":0,"free":[{"uuid":"GPU-a"},{"uuid":"GPU-a"}]}`, `free GPUs: device "GPU-a": duplicate`},
		{`{"version":1,"held":0,"free":[{"uuid":"a b"}]}`, `free GPUs: device "a b": invalid UUID "a b"`},
		{`{"version":1,"held":0,"free":[{"uuid":"MIG-a","of":" "}]}`, `free GPUs: device "MIG-a": invalid UUID " "`},
		{`{"version":1,"held":0,"free":[],"more":1}`, `free GPUs: json: unknown field "more"`},
	} {
		if _, err := allocation.ParseFreeGPUs(tt.text); err == nil || err.Error() != tt.err {
			t.Errorf("%s: error %v, want %s", tt.text, err, tt.err)
		}
	}
}

func TestHCACounts(t *testing.T) {
	want := allocation.HCACounts{Version: allocation.Version, HCAs: map[string]int{"rdma/b": 0, "rdma/a": 8}}
	if text := want.String(); text != `{"version":1,"hcas":{"rdma/a":8,"rdma/b":0}}` {
		t.Errorf("text %s", text)
	}
	got, err := allocation.ParseHCACounts(want.String())
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{
		"", "8", `{"version":2,"hcas":{}}`, `{"version":1,"hcas":{"no name":1}}`, `{"version":1,"hcas":{"rdma/a":-1}}`,
	} {
		if got, err := allocation.ParseHCACounts(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// FuzzParse checks that every accepted text is written as one of the same
// content.
func FuzzParse(f *testing.F) {
	f.Add(`{"version":1,"node":"n1","containers":{"main":[{"uuid":"GPU-a","vcore":60,"memoryMiB":4096}]}}`)
	f.Add(`{"version":1,"node":"n1","containers":{"main":{"shares":[{"uuid":"GPU-a"}],"policy":"fixed-share","by":"hami"}}}`)
	f.Add(`{"version":1,"cards":[{"uuid":"GPU-a","index":1,"memoryMiB":9,"slots":1,"numa":0,"zone":2,"healthy":false,"reason":"<&>",` +
		`"policy":"best-effort","taken":{"vcore":1,"memoryMiB":2,"slots":3}}]}`)
	f.Add(`{"version":1,"held":2,"free":[{"uuid":"GPU-a"},{"uuid":"MIG-b","of":"GPU-c"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		annotationtest.Again(t, text, allocation.ParseAllocation)
		annotationtest.Again(t, text, allocation.ParseBound)
		annotationtest.Again(t, text, allocation.ParseNodeGPUs)
		annotationtest.Again(t, text, allocation.ParseFreeGPUs)
	})
}
