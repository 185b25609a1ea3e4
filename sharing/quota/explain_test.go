package quota_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/sharing/quota"
)

func TestExplain(t *testing.T) {
	full := func() []quota.GPU {
		gpus := fill(t, hgx(t), "30/78", "30/78", "30/78", "30/79", "80/4", "100/4", "", "30/78")
		gpus[6].Unhealthy = "cordoned"
		return gpus
	}
	use := func(r quota.Request, uuids ...string) quota.Request {
		r.Use = uuids
		return r
	}
	with := func(r quota.Request, p quota.Policy) quota.Request {
		r.Policy = p
		return r
	}
	for _, test := range []struct {
		name string
		gpus []quota.GPU
		r    quota.Request
		want string
	}{
		{"nothing to explain", hgx(t), share(8, 100, 0), ""},
		{
			"all kinds", full(), share(1, 30, 4), "none of 8 GPUs can give 30 % of compute and 4 GiB. " +
				"GPUs 0-2, 7: 2 GiB of 80 left; needs 4. GPU 3: 1 GiB of 80 left; needs 4. " +
				"GPU 4: 20 % of 100 left; needs 30. GPU 5: a consumer has it exclusively. GPU 6: cordoned",
		},
		{"enough GPUs of a nearly full node", full(), share(2, 10, 2), ""},
		{
			"not enough whole GPUs", fill(t, hgx(t), "10/10", "10/10", "", "10/10", "10/10", "10/10", "10/10", "10/10"), share(2, 100, 0),
			"2 GPUs are requested and 1 of 8 can give all compute and all memory. GPUs 0-1, 3-7: 1 consumer; needs it idle",
		},
		{"more GPUs than there are", hgx(t), share(9, 30, 4), "9 GPUs are requested and the node shares 8"},
		{
			"more GPUs than there are, ill ones", func() []quota.GPU { c := pcie(t); c[2].Unhealthy = "XID 79"; return c }(), share(9, 30, 4),
			"9 GPUs are requested and the node shares 4. GPU 2: XID 79",
		},
		{
			"more memory than any GPU has", pcie(t), share(1, 30, 200),
			"none of 4 GPUs can give 30 % of compute and 200 GiB. GPUs 0-3: 80 GiB in all; needs 200",
		},
		{
			"another policy", fill(t, pcie(t), "10/10", "10/10", "10/10", "10/10"), with(share(1, 0, 4), quota.BestEffort),
			"none of 4 GPUs can give 4 GiB. GPUs 0-3: its consumers are fixed-share, not best-effort",
		},
		{
			"GPUs that it does not have", pcie(t), use(share(1, 30, 4), "GPU-9"),
			"none of 4 GPUs can give 30 % of compute and 4 GiB. The node does not share GPU-9. GPUs 0-3: the pod does not select it",
		},
		{
			"many GPUs that it does not have", pcie(t), use(share(1, 30, 4), "GPU-5", "GPU-6", "GPU-7", "GPU-8", "GPU-9"),
			"none of 4 GPUs can give 30 % of compute and 4 GiB. The node does not share GPU-5, GPU-6, GPU-7, 2 more. " +
				"GPUs 0-3: the pod does not select it",
		},
		{"no GPUs", nil, share(1, 30, 4), "the node shares no GPU"},
	} {
		if got := quota.Explain(test.gpus, &test.r); got != test.want {
			t.Errorf("%s: %q\nwant %q", test.name, got, test.want)
		}
	}
}

func TestExplainIsShort(t *testing.T) {
	gpus := make([]quota.GPU, 64)
	for i := range gpus {
		gpus[i] = quota.GPU{Index: 1000 * i, MemoryMiB: gib, Slots: 1, NUMA: -1, Unhealthy: strings.Repeat("\u00e9", i) + strings.Repeat("\u4e2d", 60)}
	}
	r := share(1, 10, 1)
	r.Avoid = []string{"GPU-a"}
	r.Use = []string{strings.Repeat("GPU-", 50), strings.Repeat("\u4e2d", 100)}
	for _, r := range []quota.Request{r, share(1, 10, 1)} {
		got := quota.Explain(gpus, &r)
		if len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
		if len(r.Use) == 0 && (len(got) < 700 || !strings.HasSuffix(got, " more GPUs lack something else")) {
			t.Errorf("the text is too short: %q", got)
		}
	}
}

func TestRequestInWords(t *testing.T) {
	for _, test := range []struct {
		r    quota.Request
		want string
	}{
		{share(1, 60, 4), "60 % of compute and 4 GiB of one GPU, fixed-share"},
		{share(2, 100, 0), "all compute and all memory of each of 2 GPUs, fixed-share"},
		{quota.Request{GPUs: 1, MemoryMiB: 1536, Policy: quota.BestEffort}, "1.5 GiB of one GPU, best-effort"},
	} {
		if got := test.r.String(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
