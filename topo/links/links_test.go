package links_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/links"
)

// every is the time between two readings; at 400 Gb/s the limit is 120 errors in it.
const every = 5 * time.Minute

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// port is a reading of a port with counters.
func port(c v1alpha1.Counters) links.Reading {
	end := links.End{HCA: "mlx5_3", ID: "0000:5e:00.0", Port: 1}
	return links.Reading{End: end, Active: true, RateGbps: 400, Errors: links.PortErrors(&c)}
}

// slot is a reading of a PCIe link.
func slot(speed float64, width int, bytes int64) links.Reading {
	return links.Reading{
		End: links.End{HCA: "mlx5_3", ID: "0000:5e:00.0"}, RateGbps: 400, Bytes: bytes,
		PCIe: links.PCIe{Speed: speed, MaxSpeed: 32, Width: width, MaxWidth: 16},
	}
}

// symbols makes a reading for each number of symbol errors; -1 is a port without a link, -2 no port.
func symbols(counts ...int64) (all []links.Reading) {
	for _, n := range counts {
		r := port(v1alpha1.Counters{SymbolErrors: max(n, 0)})
		r.Active = n >= 0
		if n == -2 {
			r = links.Reading{}
		}
		all = append(all, r)
	}
	return all
}

func each(count func(n int64) v1alpha1.Counters, counts ...int64) (all []links.Reading) {
	for _, n := range counts {
		all = append(all, port(count(n)))
	}
	return all
}

// nvlinks are readings of a link of a GPU.
func nvlinks(what string, counts ...int64) (all []links.Reading) {
	for _, n := range counts {
		end := links.End{ID: "GPU-1", Link: "NVLink 3"}
		all = append(all, links.Reading{End: end, Errors: machine.LinkErrors{what: n}})
	}
	return all
}

// sxids are readings of a link of an NVSwitch with numbers of fatal and other errors; of one without any if they are -1.
func sxids(counts ...[2]int64) (all []links.Reading) {
	for _, n := range counts {
		r := links.Reading{}
		if n[0] >= 0 {
			r.End = links.End{ID: "0000:c1:00.0", Link: "NVSwitch link 46"}
			r.Switch = &machine.SwitchErrors{
				Fatal: machine.SXids{Count: n[0], Text: "20034 LTSSM Fault Up"}, NonFatal: machine.SXids{Count: n[1], Text: "28006 MCTO"},
			}
		}
		all = append(all, r)
	}
	return all
}

func TestFindings(t *testing.T) {
	none := [2]int64{-1, -1}
	downs := func(n int64) v1alpha1.Counters { return v1alpha1.Counters{LinkDowns: n} }
	for _, tt := range []struct {
		name     string
		readings []links.Reading
		// want has a letter for each reading: "." without a finding, "!" with one.
		want string
	}{
		{"no errors", symbols(7, 7, 7, 7, 7), "....."},
		{"at the limit", symbols(0, 120, 240, 360, 480), "....."},
		{"above it in three readings", symbols(0, 121, 242, 363), "...!"},
		{"one burst", symbols(0, 60000, 60000, 60000, 60000), "....."},
		{"bursts with a good reading between", symbols(0, 1000, 2000, 2000, 3000, 4000, 4000), "......."},
		{"many errors before the first reading", symbols(60000, 60000, 60000, 60000), "...."},
		{"the driver is loaded again and again", symbols(0, 9000, 18000, 5, 9000, 18000, 5, 9000, 18000), "........."},
		{"a counter that has stopped tells nothing", symbols(0, 40000, 65535, 65535, 65535), "....."},
		{"a link that is down tells nothing", symbols(0, 500, 1000, -1, 500, 1000, 1500), "......!"},
		{"it ends after six good readings", symbols(0, 500, 1000, 1500, 1500, 1500, 1500, 1500, 1500, 1500), "...!!!!!!."},
		{"fair readings end nothing", symbols(0, 500, 1000, 1500, 1550, 1600, 1650, 1700, 1750, 1800, 1850), "...!!!!!!!!"},
		{"a counter that has stopped ends nothing", symbols(0, 500, 1000, 65535, 65535, 65535, 65535, 65535, 65535, 65535), "...!!!!!!!"},
		{"a port that is gone is not degraded for ever", symbols(0, 500, 1000, 1500, -2, -2, -2, -2, -2, -2), "...!!!!!!."},
		{"link downs in two readings", each(downs, 0, 1, 1, 1, 9, 9, 9, 9), "........"},
		{"link downs in three readings of an hour", each(downs, 0, 1, 1, 1, 2, 2, 2, 3), ".......!"},
		{"link downs more than an hour apart", each(downs, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3), ".............."},
		{
			"link downs end after an hour", each(downs, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3),
			"...!!!!!!!!!!!!.",
		},
		{
			"receive errors", each(func(n int64) v1alpha1.Counters { return v1alpha1.Counters{ReceiveErrors: n} }, 0, 200, 400, 600), "...!",
		},
		{
			"CRC errors", each(func(n int64) v1alpha1.Counters { return v1alpha1.Counters{CRCErrors: n} }, 0, 200, 400, 600), "...!",
		},
		{
			"uncorrected errors", each(func(n int64) v1alpha1.Counters { return v1alpha1.Counters{FECErrors: n} }, 0, 200, 400, 600), "...!",
		},
		{"CRC errors of an NVLink at DCGM's limit", nvlinks("nvlink-crc-errors", 0, 3e4, 6e4, 9e4, 12e4), "....."},
		{"above it", nvlinks("nvlink-crc-errors", 0, 4e4, 8e4, 12e4), "...!"},
		{"replays of an NVLink", nvlinks("nvlink-replays", 1, 2, 2, 3, 3, 4), ".....!"},
		{"recoveries of an NVLink", nvlinks("nvlink-recoveries", 9, 9, 10, 11, 0, 1), "......"},
		{"corrected errors of XGMI", nvlinks("xgmi-errors", 0, 1, 2, 3), "...!"},
		{"a narrow PCIe link", []links.Reading{slot(32, 8, 0), slot(32, 8, 0), slot(32, 8, 0), slot(32, 16, 0), slot(32, 16, 0), slot(32, 16, 0)}, "..!!!."},
		{"an idle device saves power", []links.Reading{slot(2.5, 16, 0), slot(2.5, 16, 0), slot(2.5, 16, 1e9), slot(2.5, 16, 2e9)}, "...."},
		{"a busy one does not", []links.Reading{slot(16, 16, 0), slot(16, 16, 1e12), slot(16, 16, 2e12), slot(16, 16, 3e12), slot(2.5, 16, 3e12)}, "...!!"},
		{"a fatal error of an NVSwitch", sxids(none, [2]int64{1, 0}, [2]int64{1, 0}, none), ".!!."},
		{"before the first reading", sxids([2]int64{1, 0}), "!"},
		{"other errors in two readings of an hour", sxids(none, [2]int64{0, 1}, [2]int64{0, 9}, [2]int64{0, 9}), "...."},
		{"in three", sxids(none, [2]int64{0, 1}, [2]int64{0, 2}, [2]int64{0, 2}, [2]int64{0, 3}), "....!"},
		{"before the first reading and in two", sxids([2]int64{0, 9}, [2]int64{0, 10}, [2]int64{0, 11}), "..."},
		{"a function that fell off the bus", []links.Reading{slot(0, 0, 0), slot(0, 0, 0), slot(0, 0, 0)}, "..."},
	} {
		tracker, got := links.New(nil), ""
		for i, r := range tt.readings {
			var now []links.Reading
			if r.End != (links.End{}) {
				now = append(now, r)
			}
			tracker.Add(start.Add(time.Duration(i)*every), now)
			switch len(tracker.Findings()) {
			case 0:
				got += "."
			case 1:
				got += "!"
			default:
				t.Fatalf("%s: %+v", tt.name, tracker.Findings())
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A finding has its evidence, and outlives a restart of the worker until readings are good again.
func TestEvidence(t *testing.T) {
	tracker := links.New(nil)
	for i := range 4 {
		c := v1alpha1.Counters{SymbolErrors: int64(1200 * i), LinkDowns: int64(i)}
		tracker.Add(start.Add(time.Duration(i)*every+time.Millisecond), []links.Reading{port(c), slot(32, 8, 0)})
	}
	at := func(n int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(n) * every)) }
	one := func(port int32, what, value, limit, source string, since int) v1alpha1.DegradedLink {
		return v1alpha1.DegradedLink{
			HCA: "mlx5_3", ID: "0000:5e:00.0", Port: port, What: what, Value: value, Limit: limit, Source: source,
			Since: at(since), Time: at(3),
		}
	}
	want := []v1alpha1.DegradedLink{
		one(0, "pcie-width", "x8", "x16", "PCIe, the lower of both ends", 0),
		one(1, "link-downs", "in 3 of 12 readings", "in 2 of 12 readings", "heddle", 0),
		one(1, "symbol-errors", "1.0e-11 per bit", "1.0e-12 per bit", "IBTA", 0),
	}
	got := tracker.Findings()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("findings (-want +got):\n%s", diff)
	}
	tracker = links.New(got)
	quiet := []links.Reading{port(v1alpha1.Counters{}), slot(32, 8, 0)}
	for i := range 14 {
		tracker.Add(start.Add(time.Hour+time.Duration(i)*every), quiet)
		whats := ""
		for _, f := range tracker.Findings() {
			whats += f.What + " "
		}
		want := map[bool]string{true: "pcie-width link-downs symbol-errors ", false: "pcie-width "}[i < 6]
		if i >= 6 && i < 12 {
			want = "pcie-width link-downs "
		}
		if whats != want {
			t.Errorf("after %d readings: %q, want %q", i+1, whats, want)
		}
	}
	if other := links.New([]v1alpha1.DegradedLink{{ID: "x", What: "of-a-later-version"}}); len(other.Findings()) > 0 {
		t.Error("a measure that nothing can end")
	}
}

func TestSame(t *testing.T) {
	a := []v1alpha1.DegradedLink{{ID: "a", Port: 1, What: "symbol-errors", Value: "1"}}
	b := []v1alpha1.DegradedLink{{ID: "a", Port: 1, What: "symbol-errors", Value: "2"}}
	c := []v1alpha1.DegradedLink{{ID: "a", Port: 2, What: "symbol-errors", Value: "1"}}
	if !links.Same(a, b) || links.Same(a, c) || links.Same(a, nil) {
		t.Errorf("%t %t %t", links.Same(a, b), links.Same(a, c), links.Same(a, nil))
	}
}

func TestFull(t *testing.T) {
	got := links.Full(&v1alpha1.Counters{SymbolErrors: 65535, LinkDowns: 255, ReceiveErrors: 65534, CRCErrors: 65535})
	if diff := cmp.Diff([]string{"symbol-errors", "link-downs"}, got); diff != "" {
		t.Error(diff)
	}
}

// 300 healthy ports with noise below the limit and drivers that are loaded again never alarm in three days of readings.
func TestHealthyPortsNeverAlarm(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tracker, counts := links.New(nil), make([]v1alpha1.Counters, 300)
	for i := range 3 * 24 * 12 {
		readings := make([]links.Reading, len(counts))
		for j := range counts {
			c := &counts[j]
			c.SymbolErrors += random.Int64N(120)
			switch random.IntN(5000) {
			case 0:
				*c = v1alpha1.Counters{}
			case 1:
				c.LinkDowns++
			case 2:
				c.SymbolErrors += 50000
			}
			c.SymbolErrors = min(c.SymbolErrors, 65535)
			readings[j] = port(*c)
			readings[j].Port = int32(j)
		}
		tracker.Add(start.Add(time.Duration(i)*every), readings)
		if found := tracker.Findings(); len(found) > 0 {
			t.Fatalf("reading %d: %+v", i, found)
		}
	}
}

// FuzzTracker compares the tracker with a plain count over all results, for any sequence of readings: errors of a
// step in the low bits, and what else happens in the high ones.
func FuzzTracker(f *testing.F) {
	f.Add([]byte{1, 63, 63, 63, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{63, 63, 0x40, 63, 63, 63, 0x80, 63, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		tracker := links.New(nil)
		var total int64
		var results string // g, f or b for each reading that told something.
		known, finding := false, false
		for i, step := range steps[:min(len(steps), 200)] {
			errors := int64(step&63) * 10
			r := port(v1alpha1.Counters{})
			at := start.Add(time.Duration(i) * every)
			switch step >> 6 {
			case 1: // The driver is loaded again.
				switch {
				case known && total == 0:
					results += "g"
				case known && !finding: // What went before does not count any more.
					results = ""
				}
				total = 0
			case 2: // The link is down.
				r.Active = false
			case 3: // The port is gone.
				tracker.Add(at, nil)
				known, total, results = false, 0, results+"g"
				r.Errors = nil
			default:
				if total+errors >= 65535 {
					return
				}
				total += errors
				switch {
				case !known:
				case errors > 120:
					results += "b"
				case errors > 12:
					results += "f"
				default:
					results += "g"
				}
			}
			if r.Errors != nil {
				if !known && !finding {
					results = ""
				}
				r.Errors["symbol-errors"] = total
				tracker.Add(at, []links.Reading{r})
				known = true
			}
			switch {
			case strings.HasSuffix(results, "bbb"):
				finding = true
			case strings.HasSuffix(results, "gggggg"):
				finding = false
			}
			if got := len(tracker.Findings()) == 1; got != finding {
				t.Fatalf("after step %d of %v: finding is %t, results %s", i, steps, got, results)
			}
		}
	})
}
