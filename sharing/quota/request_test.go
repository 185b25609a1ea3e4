package quota_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func node(tb testing.TB) *config.NodeConfig {
	tb.Helper()
	c := config.Default()
	if err := c.Complete(); err != nil {
		tb.Fatal(err)
	}
	return &c
}

// limits reads `sgpu=1 vcore=60` with the names of nvidia.com.
func limits(tb testing.TB, text string) corev1.ResourceList {
	tb.Helper()
	list := corev1.ResourceList{"cpu": resource.MustParse("1")}
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		q, err := resource.ParseQuantity(value)
		if err != nil {
			tb.Fatal(err)
		}
		list[corev1.ResourceName("nvidia.com/"+name)] = q
	}
	return list
}

func TestParseRequest(t *testing.T) {
	const fixed, burst, best = quota.FixedShare, quota.BurstShare, quota.BestEffort
	policy := func(p string) map[string]string { return map[string]string{"nvidia.com/sgpu-qos-policy": p} }
	for _, test := range []struct {
		name, limits string
		annotations  map[string]string
		want         quota.Request
	}{
		{"all three", "sgpu=1 vcore=60 vmemory=4", nil, quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096, Policy: fixed}},
		{"GPUs only", "sgpu=2", nil, quota.Request{GPUs: 2, VCore: 100, Policy: fixed}},
		{"no compute", "sgpu=1 vmemory=4", nil, quota.Request{GPUs: 1, VCore: 100, MemoryMiB: 4096, Policy: fixed}},
		{"no memory", "sgpu=1 vcore=1", nil, quota.Request{GPUs: 1, VCore: 1, Policy: fixed}},
		{"more GPUs than nodes have", "sgpu=9 vcore=100", nil, quota.Request{GPUs: 9, VCore: 100, Policy: fixed}},
		{"more memory than GPUs have", "sgpu=1 vmemory=4000", nil, quota.Request{GPUs: 1, VCore: 100, MemoryMiB: 4000 << 10, Policy: fixed}},
		{"Gi", "sgpu=1 vcore=5 vmemory=4Gi", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 4096, Policy: fixed}},
		{"part of a Gi", "sgpu=1 vcore=5 vmemory=1.5Gi", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 1536, Policy: fixed}},
		{"Mi", "sgpu=1 vcore=5 vmemory=512Mi", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 512, Policy: fixed}},
		{"less than a Mi", "sgpu=1 vcore=5 vmemory=1Ki", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 1, Policy: fixed}},
		{"G, rounded up", "sgpu=1 vcore=5 vmemory=4G", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 3815, Policy: fixed}},
		{"bytes as the API server spells them", "sgpu=1 vcore=5 vmemory=80000000000", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 76294, Policy: fixed}},
		{"GiB as the API server spells them", "sgpu=1 vcore=5 vmemory=1k", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 1000 << 10, Policy: fixed}},
		{"GiB with an exponent", "sgpu=1 vcore=5 vmemory=4e1", nil, quota.Request{GPUs: 1, VCore: 5, MemoryMiB: 40 << 10, Policy: fixed}},
		{"thousandths that are whole", "sgpu=1000m vcore=60000m vmemory=4000m", nil, quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096, Policy: fixed}},
		{"burst", "sgpu=1", policy("burst-share"), quota.Request{GPUs: 1, VCore: 100, Policy: burst}},
		{"best-effort", "sgpu=1 vmemory=4", policy("best-effort"), quota.Request{GPUs: 1, MemoryMiB: 4096, Policy: best}},
		{"best-effort with a compute of 0", "sgpu=1 vcore=0 vmemory=4", policy("best-effort"), quota.Request{GPUs: 1, MemoryMiB: 4096, Policy: best}},
		{"best-effort that counts", "sgpu=1 vcore=30 vmemory=4", policy("best-effort"), quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 4096, Policy: best}},
		{"an empty policy", "sgpu=1", policy(" "), quota.Request{GPUs: 1, VCore: 100, Policy: fixed}},
		{
			"the other spelling", "sgpu=1",
			map[string]string{
				"metax-tech.com/sgpu-qos-policy": "burst-share", "metax-tech.com/use-gpuuuid": "GPU-b, GPU-a", "metax-tech.com/nouse-gpuuuid": "GPU-c",
			},
			quota.Request{GPUs: 1, VCore: 100, Policy: burst, Selector: quota.Selector{Use: []string{"GPU-a", "GPU-b"}, Avoid: []string{"GPU-c"}}},
		},
		{
			"both spellings alike", "sgpu=1",
			map[string]string{
				"nvidia.com/sgpu-qos-policy": "burst-share", "metax-tech.com/sgpu-qos-policy": "burst-share",
				"nvidia.com/use-gpuuuid": "GPU-a", "metax-tech.com/use-gpuuuid": "GPU-a,",
			},
			quota.Request{GPUs: 1, VCore: 100, Policy: burst, Selector: quota.Selector{Use: []string{"GPU-a"}}},
		},
	} {
		got, err := quota.ParseRequest(limits(t, test.limits), test.annotations, node(t))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestBadRequests is the table of bad input: the request, and the text of the
// Event.
func TestBadRequests(t *testing.T) {
	for _, test := range []struct {
		limits      string
		annotations map[string]string
		want        string
	}{
		{"", nil, "requests no share of a GPU"},
		{"sgpu=0", nil, "requests no share of a GPU"},
		{"vcore=60", nil, "nvidia.com/vcore: 60 without nvidia.com/sgpu, the number of GPUs to share"},
		{"vmemory=4", nil, "nvidia.com/vmemory: 4 without nvidia.com/sgpu, the number of GPUs to share"},
		{"sgpu=0 vcore=60 vmemory=4", nil, "nvidia.com/vcore: 60 without nvidia.com/sgpu, the number of GPUs to share\n" +
			"nvidia.com/vmemory: 4 without nvidia.com/sgpu, the number of GPUs to share"},
		{"sgpu=-1", nil, "nvidia.com/sgpu: -1 is negative"},
		{"sgpu=500m", nil, "nvidia.com/sgpu: 500m is not a whole number of GPUs"},
		{"sgpu=65", nil, "nvidia.com/sgpu: 65 GPUs are more than any node has"},
		{"sgpu=9223372036854775807", nil, "nvidia.com/sgpu: 9223372036854775807 GPUs are more than any node has"},
		{"sgpu=1 vcore=0", nil, "nvidia.com/vcore: 0 is not 1 to 100 percent of a GPU; without nvidia.com/vcore it is 100, an exclusive GPU"},
		{"sgpu=1 vcore=-1", nil, "nvidia.com/vcore: -1 is not 1 to 100 percent of a GPU; without nvidia.com/vcore it is 100, an exclusive GPU"},
		{"sgpu=1 vcore=101", nil, "nvidia.com/vcore: 101 is not 1 to 100 percent of a GPU; for more GPUs raise nvidia.com/sgpu"},
		{"sgpu=1 vcore=99999999999999999999999", nil, "nvidia.com/vcore: 99999999999999999999999 is not 1 to 100 percent of a GPU; for more GPUs raise nvidia.com/sgpu"},
		{"sgpu=1 vcore=0.5", nil, "nvidia.com/vcore: 500m is not a whole number of percent"},
		{"sgpu=1 vmemory=0", nil, "nvidia.com/vmemory: invalid amount 0; without nvidia.com/vmemory it is the GPU's whole memory"},
		{"sgpu=1 vmemory=-4Gi", nil, "nvidia.com/vmemory: invalid amount -4Gi; without nvidia.com/vmemory it is the GPU's whole memory"},
		{"sgpu=1 vmemory=0.5", nil, "nvidia.com/vmemory: 500m is not a whole number of GiB; write it with a unit, such as 512Mi"},
		{"sgpu=1 vmemory=81559", nil, "nvidia.com/vmemory: 81559 GiB is more than any GPU has; a plain number is GiB"},
		{"sgpu=1 vmemory=4294967296", nil, "nvidia.com/vmemory: 4294967296 GiB is more than any GPU has; a plain number is GiB"},
		{"sgpu=1 vmemory=9223372036854775807", nil, "nvidia.com/vmemory: 9223372036854775807 GiB is more than any GPU has; a plain number is GiB"},
		{"sgpu=1 vmemory=1000000", nil, "nvidia.com/vmemory: 1M is 1000000 bytes; for GiB write a plain number, for less 512Mi"},
		{"sgpu=1 vmemory=7Ei", nil, "nvidia.com/vmemory: 7Ei is more than any GPU has"},
		{"sgpu=1 vmemory=999999E", nil, "nvidia.com/vmemory: 999999E is more than any GPU has"},
		{
			"sgpu=1",
			map[string]string{"nvidia.com/sgpu-qos-policy": "Fixed-Share"},
			`annotation nvidia.com/sgpu-qos-policy: unsupported value "Fixed-Share": want fixed-share, burst-share or best-effort`,
		},
		{
			"sgpu=1",
			map[string]string{"metax-tech.com/sgpu-qos-policy": "best"},
			`annotation metax-tech.com/sgpu-qos-policy: unsupported value "best": want fixed-share, burst-share or best-effort`,
		},
		{
			"sgpu=1",
			map[string]string{"nvidia.com/sgpu-qos-policy": "fixed-share", "metax-tech.com/sgpu-qos-policy": "best-effort"},
			"annotations nvidia.com/sgpu-qos-policy and metax-tech.com/sgpu-qos-policy are both present and differ",
		},
		{
			"sgpu=1",
			map[string]string{"nvidia.com/use-gpuuuid": "GPU-a", "metax-tech.com/use-gpuuuid": "GPU-b"},
			"annotations nvidia.com/use-gpuuuid and metax-tech.com/use-gpuuuid are both present and differ",
		},
		{
			"sgpu=65 vcore=101 vmemory=0.5",
			map[string]string{"nvidia.com/sgpu-qos-policy": "x"},
			"nvidia.com/sgpu: 65 GPUs are more than any node has\n" +
				"annotation nvidia.com/sgpu-qos-policy: unsupported value \"x\": want fixed-share, burst-share or best-effort\n" +
				"nvidia.com/vcore: 101 is not 1 to 100 percent of a GPU; for more GPUs raise nvidia.com/sgpu\n" +
				"nvidia.com/vmemory: 500m is not a whole number of GiB; write it with a unit, such as 512Mi",
		},
	} {
		got, err := quota.ParseRequest(limits(t, test.limits), test.annotations, node(t))
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: error %v\nwant %s", test.limits, err, test.want)
		}
		if errors.Is(err, quota.ErrNoShare) != (test.limits == "" || test.limits == "sgpu=0") {
			t.Errorf("%s: %v is ErrNone: %v", test.limits, err, errors.Is(err, quota.ErrNoShare))
		}
		if diff := cmp.Diff(quota.Request{}, got); diff != "" {
			t.Errorf("%s: a faulty request requests something (-want +got):\n%s", test.limits, diff)
		}
	}
}

func TestParseRequestOfOtherDomains(t *testing.T) {
	c := config.Default()
	c.Domains.Vendor = "metax-tech.com"
	c.Resources = config.Resources{}
	c.Resources.VMemory = "acme.io/gpu-gib"
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	got, err := quota.ParseRequest(corev1.ResourceList{
		"metax-tech.com/sgpu": resource.MustParse("1"), "metax-tech.com/vcore": resource.MustParse("20"), "acme.io/gpu-gib": resource.MustParse("3"),
	}, map[string]string{"metax-tech.com/sgpu-qos-policy": "burst-share", "metax-tech.com/use-gpuuuid": "GPU-a"}, &c)
	want := quota.Request{GPUs: 1, VCore: 20, MemoryMiB: 3072, Policy: quota.BurstShare, Selector: quota.Selector{Use: []string{"GPU-a"}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// FuzzParseRequest wants of every request that is accepted that it is within
// bounds, and of every other that its error is.
func FuzzParseRequest(f *testing.F) {
	f.Add("1", "60", "4", "fixed-share", "", "GPU-a")
	f.Add("1", "", "4Gi", "", "best-effort", "")
	f.Add("2", "100", "1.5", "burst-share", "burst-share", "GPU-b,,GPU-a")
	f.Add("9223372036854775808", "-1", "1e400", "x", "", ",")
	f.Add("", "1n", "16E", "", "", "")
	c := node(f)
	exponent := regexp.MustCompile(`[eE][+-]?[0-9]{4,}`)
	f.Fuzz(func(t *testing.T, sgpu, vcore, vmemory, policy, alias, use string) {
		list := corev1.ResourceList{}
		for name, text := range map[string]string{c.Resources.SGPU: sgpu, c.Resources.VCore: vcore, c.Resources.VMemory: vmemory} {
			if exponent.MatchString(text) {
				continue // An API server takes minutes for it too.
			}
			if q, err := resource.ParseQuantity(text); err == nil {
				list[corev1.ResourceName(name)] = q
			}
		}
		r, err := quota.ParseRequest(list, map[string]string{
			"nvidia.com/sgpu-qos-policy": policy, "metax-tech.com/sgpu-qos-policy": alias, "nvidia.com/use-gpuuuid": use,
		}, c)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if r.GPUs < 1 || r.GPUs > quota.MaxGPUs || r.VCore < 0 || r.VCore > 100 || r.MemoryMiB < 0 || r.MemoryMiB > 1<<26 ||
			r.VCore == 0 && r.Policy != quota.BestEffort {
			t.Errorf("%v is taken for %+v", list, r)
		}
		gpus := []quota.GPU{{UUID: "GPU-a", MemoryMiB: 80 << 10, Slots: 4, NUMA: -1}}
		_, ok := quota.Place(gpus, &r, config.PlacementBinpack, nil)
		if why := quota.Explain(gpus, &r); ok != (why == "") || len(why) > quota.MaxExplanation {
			t.Errorf("%+v: placed %v, explained %q", r, ok, why)
		}
	})
}
