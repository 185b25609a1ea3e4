package allocation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
)

// The texts are what HAMi 2.10 wrote and read when it was run against a node
// with one GPU.
const (
	hamiNode = `[{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"availableDevCount":16,"availableCompute":100,"availableVRam":143771,"numa":0,"healthy":true,` +
		`"qosPolicy":"","linkZone":1}]`
	hamiPod = `[[{"uuid":"GPU-aaaa-0000-0001","compute":10,"vRam":1024}],[{"uuid":"GPU-aaaa-0000-0001","compute":30,"vRam":2048}],` +
		`[],[{"uuid":"GPU-aaaa-0000-0001","compute":20,"vRam":8192}]]`
)

func TestHAMiNode(t *testing.T) {
	want := allocation.HAMiNode{{
		UUID: "GPU-aaaa-0000-0001", BDF: "0000:01:00.0", Model: "NVIDIA H200", TotalDevCount: 16, TotalCompute: 100,
		TotalVRam: 143771, AvailableDevCount: 16, AvailableCompute: 100, AvailableVRam: 143771, Healthy: true, LinkZone: 1,
	}}
	if got := want.String(); got != hamiNode {
		t.Errorf("text is %s\nwant %s", got, hamiNode)
	}
	got, err := allocation.ParseHAMiNode(hamiNode)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := allocation.HAMiNode(nil).String(); got != "[]" {
		t.Errorf("no GPUs are %s, want []", got)
	}
}

func TestHAMiPod(t *testing.T) {
	got, err := allocation.ParseHAMiPod(hamiPod)
	if err != nil {
		t.Fatal(err)
	}
	if text := got.String(); text != hamiPod {
		t.Errorf("text is %s\nwant %s", text, hamiPod)
	}
	for i, want := range [][]allocation.Share{
		{{UUID: "GPU-aaaa-0000-0001", VCore: 10, MemoryMiB: 1024}},
		{{UUID: "GPU-aaaa-0000-0001", VCore: 30, MemoryMiB: 2048}},
		nil,
		{{UUID: "GPU-aaaa-0000-0001", VCore: 20, MemoryMiB: 8192}},
		nil,
	} {
		if diff := cmp.Diff(want, got.Shares(i)); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
	if got.Shares(-1) != nil {
		t.Error("container -1 has shares")
	}
}

func TestHAMiGrows(t *testing.T) {
	got, err := allocation.ParseHAMiPod(`[[{"uuid":"GPU-a","compute":0,"vRam":5,"new":{"x":1}}]]`)
	if want := (allocation.HAMiPod{{{UUID: "GPU-a", VRam: 5}}}); err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
}

func TestBadHAMi(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "HAMi's allocation: empty"},
		{"truncated", hamiPod[:50], "HAMi's allocation: unexpected EOF"},
		{"an object", "{}", "HAMi's allocation: json: cannot unmarshal object into Go value of type allocation.HAMiPod"},
		{"compute 101", `[[],[{"uuid":"GPU-a","compute":101}]]`, "HAMi's allocation: container 1: share 0: vcore: 101 is not between 0 and 100"},
		{"memory -1", `[[{"uuid":"GPU-a","vRam":-1}]]`, "HAMi's allocation: container 0: share 0: memoryMiB: -1 is not between 0 and 67108864"},
		{
			"memory of an overflow", `[[{"uuid":"GPU-a","vRam":4294967296}]]`,
			"HAMi's allocation: json: cannot unmarshal number 4294967296 into Go struct field HAMiShare.vRam of type int32",
		},
		{"no UUID", `[[{"compute":1}]]`, `HAMi's allocation: container 0: share 0: "" is no UUID`},
		{
			"one GPU twice", `[[{"uuid":"GPU-a"},{"uuid":"GPU-a"}]]`,
			"HAMi's allocation: container 0: GPU GPU-a is there twice; shares of a container are of different GPUs",
		},
		{"containers without end", "[" + strings.Repeat("[],", 512) + "[]]", "HAMi's allocation: 513 containers; at most 512"},
	} {
		got, err := allocation.ParseHAMiPod(test.text)
		if got != nil || err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, error %v\nwant %s", test.name, got, err, test.want)
		}
	}
	for _, text := range []string{"", "{}", "[{}]", `[{"uuid":"a b"}]`, "[" + strings.Repeat("{},", 64) + "{}]"} {
		if got, err := allocation.ParseHAMiNode(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// FuzzParse checks that every accepted text is written as one of the same
// content.
func FuzzParse(f *testing.F) {
	f.Add(hamiNode)
	f.Add(hamiPod)
	f.Add(`{"version":1,"node":"n1","containers":{"main":[{"uuid":"GPU-a","vcore":60,"memoryMiB":4096}]}}`)
	f.Add(`{"version":1,"node":"n1","containers":{"main":{"shares":[{"uuid":"GPU-a"}],"policy":"fixed-share","by":"hami"}}}`)
	f.Add(`{"version":1,"cards":[{"uuid":"GPU-a","index":1,"memoryMiB":9,"slots":1,"numa":0,"zone":2,"healthy":false,"reason":"<&>",` +
		`"policy":"best-effort","taken":{"vcore":1,"memoryMiB":2,"slots":3}}]}`)
	f.Add(`{"version":1,"held":2,"free":[{"uuid":"GPU-a"},{"uuid":"MIG-b","of":"GPU-c"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		again(t, text, allocation.ParseAllocation)
		again(t, text, allocation.ParseBound)
		again(t, text, allocation.ParseNodeGPUs)
		again(t, text, allocation.ParseFreeGPUs)
		again(t, text, allocation.ParseHAMiNode)
		again(t, text, allocation.ParseHAMiPod)
	})
}

func again[V interface{ String() string }](t *testing.T, text string, parse func(string) (V, error)) {
	t.Helper()
	first, err := parse(text)
	if err != nil {
		if len(err.Error()) > 64<<10 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		return
	}
	second, err := parse(first.String())
	if err != nil || first.String() != second.String() {
		t.Errorf("%q is written as %q, which is read as %q, error %v", text, first, second, err)
	}
}
