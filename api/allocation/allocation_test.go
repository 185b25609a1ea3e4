package allocation_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/test/annotationtest"
)

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

func TestBadAllocations(t *testing.T) {
	whole := func(shares string) string {
		return `{"version":1,"node":"n1","containers":{"main":` + shares + `}}`
	}
	share := func(uuid, vcore, memory string) string {
		return whole(fmt.Sprintf(`[{"uuid":%q,"vcore":%s,"memoryMiB":%s}]`, uuid, vcore, memory))
	}
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "allocation: empty"},
		{"truncated", share("GPU-a", "1", "1")[:40], "allocation: unexpected EOF"},
		{"two values", share("GPU-a", "1", "1") + "{}", "allocation: something follows the JSON"},
		{"null", "null", "allocation: version 0 is unknown, 1 is known"},
		{"another type", "[]", "allocation: json: cannot unmarshal array into Go value of type allocation.Allocation"},
		{"a later version", `{"version":2,"node":"n1"}`, "allocation: version 2 is unknown, 1 is known"},
		{"an unknown field", `{"version":1,"node":"n1","priority":1}`, `allocation: json: unknown field "priority"`},
		{"no node", `{"version":1,"containers":{}}`, `allocation: invalid node name ""`},
		{"no shares", whole("[]"), `allocation: container "main": 0 shares; a container has 1 to 64`},
		{
			"a container that cannot be", `{"version":1,"node":"n1","containers":{"Main":[{"uuid":"GPU-a"}]}}`,
			`allocation: invalid container name "Main"`,
		},
		{"no UUID", share("", "1", "1"), `allocation: container "main": share 0: invalid UUID ""`},
		{"a list for a UUID", share("GPU-a,GPU-b", "1", "1"), `allocation: container "main": share 0: invalid UUID "GPU-a,GPU-b"`},
		{"vcore 101", share("GPU-a", "101", "1"), `allocation: container "main": share 0: vcore: 101 is not between 0 and 100`},
		{"vcore -1", share("GPU-a", "-1", "1"), `allocation: container "main": share 0: vcore: -1 is not between 0 and 100`},
		{"memory -1", share("GPU-a", "1", "-1"), `allocation: container "main": share 0: memoryMiB: -1 is not between 0 and 67108864`},
		{
			"memory of an overflow", share("GPU-a", "1", "9223372036854775807"),
			`allocation: container "main": share 0: memoryMiB: 9223372036854775807 is not between 0 and 67108864`,
		},
		{
			"a number that is none", share("GPU-a", "1", "1e99"),
			"allocation: json: cannot unmarshal number 1e99 into Go struct field Share.containers.memoryMiB of type int64",
		},
		{
			"one GPU twice", whole(`[{"uuid":"GPU-a","vcore":1},{"uuid":"GPU-a","vcore":1}]`),
			`allocation: container "main": duplicate GPU GPU-a; shares of a container must be on different GPUs`,
		},
		{
			"many shares", whole("[" + strings.Repeat(`{"uuid":"GPU-a"},`, 64) + `{"uuid":"GPU-a"}]`),
			`allocation: container "main": 65 shares; a container has 1 to 64`,
		},
		{"very long", strings.Repeat(" ", 256<<10) + "{}", "allocation: longer than 262144 bytes"},
	} {
		got, err := allocation.ParseAllocation(test.text)
		if got != nil || err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, error %v\nwant %s", test.name, got, err, test.want)
		}
	}
}

func TestBadBoundAndNodeGPUs(t *testing.T) {
	bound := func(policy, by string) string {
		return fmt.Sprintf(`{"version":1,"node":"n1","containers":{"main":{"shares":[{"uuid":"GPU-a"}],"policy":%q,"by":%q}}}`, policy, by)
	}
	gpu := func(fields string) string {
		return `{"version":1,"cards":[{"uuid":"GPU-a","healthy":true` + fields + `}]}`
	}
	for _, test := range []struct{ name, text, want string }{
		{"by no component", bound("fixed-share", ""), `bound shares: container "main": by: unknown ""`},
		{"by another", bound("fixed-share", "me"), `bound shares: container "main": by: unknown "me"`},
		{"no policy", bound("", "node"), `bound shares: container "main": invalid policy ""`},
		{"another version", `{"version":0,"cards":[]}`, "GPUs: version 0 is unknown, 1 is known"},
		{"more memory than can be", gpu(`,"memoryMiB":67108865`), `GPUs: GPU "GPU-a": memoryMiB: 67108865 is not between 0 and 67108864`},
		{"no more room than memory", gpu(`,"memoryMiB":2,"roomMiB":2`), `GPUs: GPU "GPU-a": roomMiB: not more than memoryMiB`},
		{"less than nothing taken", gpu(`,"taken":{"slots":-1}`), `GPUs: GPU "GPU-a": taken.slots: -1 is not between 0 and 65536`},
		{"a NUMA node that cannot be", gpu(`,"numa":-1`), `GPUs: GPU "GPU-a": numa: -1 is not between 0 and 65536`},
		{"well, with a reason", gpu(`,"reason":"XID 79"`), `GPUs: GPU "GPU-a": a GPU is healthy, or has a reason why not`},
		{"twice", `{"version":1,"cards":[{"uuid":"GPU-a","healthy":true},{"uuid":"GPU-a","healthy":true}]}`, `GPUs: GPU "GPU-a": duplicate`},
		{"a long reason", `{"version":1,"cards":[{"uuid":"GPU-a","reason":"` + strings.Repeat("x", 257) + `"}]}`, `GPUs: GPU "GPU-a": reason: longer than 256 bytes`},
	} {
		var err error
		if strings.Contains(test.text, "cards") {
			_, err = allocation.ParseNodeGPUs(test.text)
		} else {
			_, err = allocation.ParseBound(test.text)
		}
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: error %v\nwant %s", test.name, err, test.want)
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
