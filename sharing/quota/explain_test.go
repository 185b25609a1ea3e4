package quota_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/sharing/quota"
)

func TestExplain(t *testing.T) {
	full := func() []quota.GPU {
		cards := fill(t, hgx(t), "30/78", "30/78", "30/78", "30/79", "80/4", "100/4", "", "30/78")
		cards[6].Unhealthy = "cordoned"
		return cards
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
		name  string
		cards []quota.GPU
		r     quota.Request
		want  string
	}{
		{"nothing to explain", hgx(t), share(8, 100, 0), ""},
		{
			"all kinds", full(), share(1, 30, 4), "no card of 8 can give 30 % of compute and 4 GiB. " +
				"cards 0-2, 7: 2 GiB of 80 left; needs 4. card 3: 1 GiB of 80 left; needs 4. " +
				"card 4: 20 % of 100 left; needs 30. card 5: a tenant has it alone. card 6: cordoned",
		},
		{"enough cards of a nearly full node", full(), share(2, 10, 2), ""},
		{
			"not enough whole cards", fill(t, hgx(t), "10/10", "10/10", "", "10/10", "10/10", "10/10", "10/10", "10/10"), share(2, 100, 0),
			"2 cards are asked for and 1 of 8 can give all compute and all memory. cards 0-1, 3-7: 1 tenant; needs it idle",
		},
		{"more cards than there are", hgx(t), share(9, 30, 4), "9 cards are asked for and the node shares 8"},
		{
			"more cards than there are, ill ones", func() []quota.GPU { c := pcie(t); c[2].Unhealthy = "XID 79"; return c }(), share(9, 30, 4),
			"9 cards are asked for and the node shares 4. card 2: XID 79",
		},
		{
			"more memory than any card has", pcie(t), share(1, 30, 200),
			"no card of 4 can give 30 % of compute and 200 GiB. cards 0-3: 80 GiB in all; needs 200",
		},
		{
			"another policy", fill(t, pcie(t), "10/10", "10/10", "10/10", "10/10"), with(share(1, 0, 4), quota.BestEffort),
			"no card of 4 can give 4 GiB. cards 0-3: its tenants are fixed-share, not best-effort",
		},
		{
			"cards that it does not have", pcie(t), use(share(1, 30, 4), "GPU-9"),
			"no card of 4 can give 30 % of compute and 4 GiB. The node does not share GPU-9. cards 0-3: the pod does not ask for it",
		},
		{
			"many cards that it does not have", pcie(t), use(share(1, 30, 4), "GPU-5", "GPU-6", "GPU-7", "GPU-8", "GPU-9"),
			"no card of 4 can give 30 % of compute and 4 GiB. The node does not share GPU-5, GPU-6, GPU-7, 2 more. " +
				"cards 0-3: the pod does not ask for it",
		},
		{"no cards", nil, share(1, 30, 4), "the node shares no card"},
	} {
		if got := quota.Explain(test.cards, &test.r); got != test.want {
			t.Errorf("%s: %q\nwant %q", test.name, got, test.want)
		}
	}
}

func TestExplainIsShort(t *testing.T) {
	cards := make([]quota.GPU, 64)
	for i := range cards {
		cards[i] = quota.GPU{Index: 1000 * i, MemoryMiB: gib, Slots: 1, NUMA: -1, Unhealthy: strings.Repeat("\u00e9", i) + strings.Repeat("\u4e2d", 60)}
	}
	r := share(1, 10, 1)
	r.Avoid = []string{"GPU-a"}
	r.Use = []string{strings.Repeat("GPU-", 50), strings.Repeat("\u4e2d", 100)}
	for _, r := range []quota.Request{r, share(1, 10, 1)} {
		got := quota.Explain(cards, &r)
		if len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
		if len(r.Use) == 0 && (len(got) < 700 || !strings.HasSuffix(got, " more cards lack something else")) {
			t.Errorf("it says too little: %q", got)
		}
	}
}

func TestRequestInWords(t *testing.T) {
	for _, test := range []struct {
		r    quota.Request
		want string
	}{
		{share(1, 60, 4), "60 % of compute and 4 GiB of one card, fixed-share"},
		{share(2, 100, 0), "all compute and all memory of each of 2 cards, fixed-share"},
		{quota.Request{GPUs: 1, MemoryMiB: 1536, Policy: quota.BestEffort}, "1.5 GiB of one card, best-effort"},
	} {
		if got := test.r.String(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
