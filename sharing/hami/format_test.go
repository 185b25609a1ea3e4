package hami_test

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/annotationtest"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// The texts show the format with other amounts than the recordings have.
const (
	nodeText = `[{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"numa":0,"healthy":true,` +
		`"qosPolicy":"","linkZone":1}]`
	podText = `[[{"uuid":"GPU-aaaa-0000-0001","compute":10,"vRam":1024}],[{"uuid":"GPU-aaaa-0000-0001","compute":30,"vRam":2048}],` +
		`[],[{"uuid":"GPU-aaaa-0000-0001","compute":20,"vRam":8192}]]`
)

func TestNodeGPUs(t *testing.T) {
	want := hami.NodeGPUs{{
		UUID: "GPU-aaaa-0000-0001", BDF: "0000:01:00.0", Model: "NVIDIA H200", TotalDevCount: 16, TotalCompute: 100,
		TotalVRam: 143771, Healthy: true, LinkZone: 1,
	}}
	if got := want.String(); got != nodeText {
		t.Errorf("text is %s\nwant %s", got, nodeText)
	}
	got, err := hami.ParseNodeGPUs(nodeText)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := hami.Annotation(nil, true); got != "[]" {
		t.Errorf("no GPUs are %s, want []", got)
	}
}

func TestPodShares(t *testing.T) {
	got, err := hami.ParsePodShares(podText)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]allocation.Share{
		{{UUID: "GPU-aaaa-0000-0001", VCore: 10, MemoryMiB: 1024}},
		{{UUID: "GPU-aaaa-0000-0001", VCore: 30, MemoryMiB: 2048}},
		nil,
		{{UUID: "GPU-aaaa-0000-0001", VCore: 20, MemoryMiB: 8192}},
		nil,
	} {
		if diff := cmp.Diff(want, got.Of(i)); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
	if got.Of(-1) != nil {
		t.Error("container -1 has shares")
	}
}

// TestRecordedFormat: what unmodified HAMi wrote, and what it read of the Node, is written
// as it was read. The recordings have amounts that HAMi does not read.
func TestRecordedFormat(t *testing.T) {
	for _, version := range hamirecord.Versions() {
		recording := hamirecord.Load(t, version)
		text := regexp.MustCompile(`"available[^,]*,`).ReplaceAllString(recording.Node[wellknown.HAMiGPUs], "")
		if gpus, err := hami.ParseNodeGPUs(text); err != nil || len(gpus) != 8 || gpus.String() != text {
			t.Errorf("HAMi %s: %v is written as %s\nwant %s", version, err, gpus, text)
		}
		for _, p := range recording.Pods {
			text, chosen := p.Written.Annotations[wellknown.HAMiAllocation]
			if !chosen {
				continue
			}
			shares, err := hami.ParsePodShares(text)
			if again, _ := json.Marshal(shares); err != nil || string(again) != text {
				t.Errorf("HAMi %s, pod %s: %v is written as %s\nwant %s", version, p.Name, err, again, text)
			}
		}
	}
}

func TestBadFormat(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "HAMi's allocation: empty"},
		{"truncated", podText[:50], "HAMi's allocation: unexpected end of JSON input"},
		{"an object", "{}", "HAMi's allocation: json: cannot unmarshal object into Go value of type hami.PodShares"},
		{"compute 101", `[[],[{"uuid":"GPU-a","compute":101}]]`, "HAMi's allocation: container 1: share 0: vcore: 101 is not between 0 and 100"},
		{"memory -1", `[[{"uuid":"GPU-a","vRam":-1}]]`, "HAMi's allocation: container 0: share 0: memoryMiB: -1 is not between 0 and 67108864"},
		{
			"memory of an overflow", `[[{"uuid":"GPU-a","vRam":4294967296}]]`,
			"HAMi's allocation: json: cannot unmarshal number 4294967296 into Go struct field Share.vRam of type int32",
		},
		{"no UUID", `[[{"compute":1}]]`, `HAMi's allocation: container 0: share 0: invalid UUID ""`},
		{
			"one GPU twice", `[[{"uuid":"GPU-a"},{"uuid":"GPU-a"}]]`,
			"HAMi's allocation: container 0: duplicate GPU GPU-a; shares of a container must be on different GPUs",
		},
		{"containers without end", "[" + strings.Repeat("[],", 512) + "[]]", "HAMi's allocation: 513 containers; at most 512"},
	} {
		got, err := hami.ParsePodShares(test.text)
		if got != nil || err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, error %v\nwant %s", test.name, got, err, test.want)
		}
	}
	for _, text := range []string{"", "{}", "[{}]", `[{"uuid":"a b"}]`, "[" + strings.Repeat("{},", 64) + "{}]"} {
		if got, err := hami.ParseNodeGPUs(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// FuzzFormat checks that every accepted text is written as one of the same
// content.
func FuzzFormat(f *testing.F) {
	f.Add(nodeText)
	f.Add(podText)
	for _, version := range hamirecord.Versions() {
		recording := hamirecord.Load(f, version)
		f.Add(recording.Node[wellknown.HAMiGPUs])
		for _, p := range recording.Pods {
			f.Add(p.Written.Annotations[wellknown.HAMiAllocation])
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		annotationtest.Again(t, text, hami.ParseNodeGPUs)
		_, _ = hami.ParsePodShares(text) // It does not panic.
	})
}

func gpu(uuid string, index int, do ...func(*hami.GPU)) hami.GPU {
	c := hami.GPU{BDF: "0000:01:00.0", Model: "NVIDIA H200", GPU: quota.GPU{
		UUID: uuid, Index: index, MemoryMiB: total, Slots: 16, Zone: 1,
	}}
	for _, f := range do {
		f(&c)
	}
	return c
}

func TestAnnotation(t *testing.T) {
	const idle = `{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"numa":0,"healthy":true,"qosPolicy":"","linkZone":1}`
	const shut = `{"uuid":"GPU-aaaa-0000-0001","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"numa":0,"healthy":false,"qosPolicy":"","linkZone":1}`
	const used = `{"uuid":"GPU-bbbb-0000-0002","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"numa":-1,"healthy":true,"qosPolicy":"burst-share","linkZone":0}`
	const whole = `{"uuid":"GPU-bbbb-0000-0002","bdf":"0000:01:00.0","model":"NVIDIA H200","totalDevCount":16,"totalCompute":100,` +
		`"totalVRam":143771,"numa":0,"healthy":true,"qosPolicy":"","linkZone":1}`
	const odd = `{"uuid":"GPU-bbbb-0000-0002","bdf":"","model":"","totalDevCount":0,"totalCompute":100,` +
		`"totalVRam":2147483647,"numa":0,"healthy":true,"qosPolicy":"","linkZone":0}`
	shared := gpu(gpuB, 1, func(c *hami.GPU) {
		c.NUMA, c.Zone, c.Consumers, c.VCore, c.UsedMiB, c.Policy = -1, 0, 2, 90, 2048, quota.BurstShare
	})
	for _, tt := range []struct {
		name, want string
		gpus       []hami.GPU
		closed     bool
	}{
		{name: "none", want: "[]"},
		{name: "one", gpus: []hami.GPU{gpu(gpuA, 0)}, want: "[" + idle + "]"},
		{name: "by index", gpus: []hami.GPU{shared, gpu(gpuA, 0)}, want: "[" + idle + "," + used + "]"},
		{name: "lost", gpus: []hami.GPU{gpu(gpuA, 0, func(c *hami.GPU) { c.Unhealthy = "lost" }), shared}, want: "[" + shut + "," + used + "]"},
		{name: "closed", gpus: []hami.GPU{gpu(gpuA, 0)}, closed: true, want: "[" + shut + "]"},
		{name: "one consumer has it all", gpus: []hami.GPU{gpu(gpuB, 0, func(c *hami.GPU) {
			c.Consumers, c.VCore, c.UsedMiB, c.Exclusive, c.Policy = 1, 100, total, true, quota.FixedShare
		})}, want: "[" + whole + "]"},
		{name: "a policy without consumers", gpus: []hami.GPU{gpu(gpuA, 0, func(c *hami.GPU) { c.Policy = quota.BurstShare })}, want: "[" + idle + "]"},
		{name: "more than fits", gpus: []hami.GPU{{GPU: quota.GPU{UUID: gpuB, MemoryMiB: math.MaxInt64, UsedMiB: math.MaxInt64, Consumers: 9, VCore: 300}}}, want: "[" + odd + "]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, hami.Annotation(tt.gpus, !tt.closed)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
