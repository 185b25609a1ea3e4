package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/nvswitch"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// A degraded link is written when it appears and when it ends, and its value once an hour.
func TestDegradedLinks(t *testing.T) {
	tree := sysfstest.New(t)
	dir := "sys/class/infiniband/mlx5_0/ports/1/"
	tree.Write(dir+"link_layer", "InfiniBand")
	tree.Write(dir+"counters/symbol_error", "0")
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.machine.HCAs[0].Ports[0].RateGbps = new(400.0)
		b.machine.PCI = []machine.PCIFunction{
			{Address: "0000:18:00.0", LinkSpeed: "32.0 GT/s PCIe", LinkWidth: 16, MaxLinkSpeed: "32.0 GT/s PCIe", MaxLinkWidth: 16},
			{Address: "0000:17:00.0", LinkSpeed: "2.5 GT/s PCIe", LinkWidth: 16, MaxLinkSpeed: "32.0 GT/s PCIe", MaxLinkWidth: 16},
		}
		b.machine.GPUs = []machine.GPU{{UUID: "GPU-1", PCI: "0000:17:00.0"}}
		counters := rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
		errors := 0
		// read makes a reading after each five minutes, with ten passes between two.
		read := func(n, each int) {
			t.Helper()
			for range n {
				errors += each
				tree.Write(dir+"counters/symbol_error", fmt.Sprint(errors))
				counters.Scan()
				b.Counters = counters
				for range 10 {
					b.round(t)
					<-time.After(30 * time.Second)
				}
			}
		}
		published := func(when string, writes int, want ...v1alpha1.DegradedLink) {
			t.Helper()
			ignore := cmpopts.IgnoreFields(v1alpha1.DegradedLink{}, "Time", "Since")
			if diff := cmp.Diff(want, b.object.Spec.DegradedLinks, ignore, cmpopts.EquateEmpty()); diff != "" || b.applies != writes {
				t.Errorf("%s: %d writes, want %d (-want +got):\n%s", when, b.applies, writes, diff)
			}
		}
		symbols := v1alpha1.DegradedLink{
			HCA: "mlx5_0", ID: "0000:18:00.0", Port: 1, What: "symbol-errors", Value: "1.0e-11 per bit",
			Limit: "1.0e-12 per bit", Source: "IBTA",
		}
		width := v1alpha1.DegradedLink{
			ID: "GPU-1", What: "pcie-width", Value: "x8", Limit: "x16", Source: "PCIe, the lower of both ends",
		}
		read(3, 0)
		published("no errors, and an idle GPU", 1)
		read(2, 1200)
		published("two bad readings", 2) // The counters.
		read(1, 1200)
		published("three bad readings", 3, symbols)
		read(11, 2400)
		published("an hour of more errors", 4, symbols) // The counters, an hour after the first.
		read(2, 2400)
		symbols.Value = "2.0e-11 per bit"
		published("the value after an hour", 5, symbols)
		b.restart(t)
		read(1, 0)
		published("a restart", 5, symbols)
		b.machine.PCI[1].LinkWidth = 8
		read(3, 0)
		symbols.Value = "0.0e+00 per bit"
		published("a GPU's link loses half of its lanes", 6, symbols, width)
		read(3, 0)
		published("an hour without errors", 7, width)
		b.machine.PCI[1].LinkWidth = 16
		read(3, 0)
		published("the GPU's link is as wide again", 9)
	})
}

// The switch's end of a cable is judged separately, while the node's end counts nothing.
func TestDegradedAtTheSwitch(t *testing.T) {
	tree := sysfstest.New(t)
	dir := "sys/class/infiniband/mlx5_0/ports/1/"
	tree.Write(dir+"link_layer", "InfiniBand")
	tree.Write(dir+"counters/symbol_error", "0")
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.machine.HCAs[0].Ports[0].RateGbps = new(400.0)
		b.Counters = rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
		b.far = &v1alpha1.Counters{}
		read := func(n int, each int64) {
			t.Helper()
			for range n {
				if b.far != nil {
					b.far.SymbolErrors += each
				}
				b.Counters.Scan()
				for range 10 {
					b.round(t)
					<-time.After(30 * time.Second)
				}
			}
		}
		found := func(when string, writes, want int) {
			t.Helper()
			got := b.object.Spec.DegradedLinks
			if len(got) != want || want > 0 && (got[0].End != v1alpha1.SwitchEnd || got[0].HCA != "mlx5_0" || got[0].Value != "1.0e-11 per bit") {
				t.Errorf("%s: %+v", when, got)
			}
			if b.applies != writes {
				t.Errorf("%s: %d writes, want %d", when, b.applies, writes)
			}
		}
		read(3, 1200)
		found("two bad readings", 1, 0)
		read(1, 1200)
		found("three bad readings", 2, 1)
		b.machine.HCAs[0].Ports[0].State = machine.PortDown
		far := b.far
		b.far = nil
		read(7, 0)
		found("a link that is down tells nothing", 3, 1)
		b.machine.HCAs[0].Ports[0].State = machine.PortActive
		b.far = far
		read(7, 0)
		found("six good readings", 6, 0) // The link is up, the value after an hour, and the end.
		read(4, 1200)
		found("errors again", 7, 1)
		b.far = nil
		read(6, 0)
		found("a switch that answers no more", 8, 0)
		b.far = &v1alpha1.Counters{SymbolErrors: 65535}
		read(1, 0)
		if got := b.object.Spec.Skipped; len(got) != 1 || got[0].Name != "switch of mlx5_0 port 1" {
			t.Errorf("skipped: %+v", got)
		}
	})
}

// An NVLink's errors are judged between two readings of the counters of ports.
func TestDegradedLinkOfAGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Counters = rdma.NewCounters(t.TempDir(), rdma.CountersEvery)
		b.LinkCounters = gpu.NewLinkCounters()
		read := func(errors int64) []v1alpha1.DegradedLink {
			b.LinkCounters.Put("GPU-1", map[string]machine.LinkErrors{"NVLink 3": {"nvlink-crc-errors": errors}, "NVLink 4": {}})
			b.Counters.Scan()
			b.round(t)
			if !b.LinkCounters.Due("GPU-1") {
				t.Error("the counters were not taken")
			}
			<-time.After(rdma.CountersEvery)
			return b.object.Spec.DegradedLinks
		}
		want := v1alpha1.DegradedLink{
			ID: "GPU-1", Link: "NVLink 3", What: "nvlink-crc-errors", Value: "1000 per second", Limit: "100 per second", Source: "DCGM",
		}
		for i := range int64(4) {
			found := read(300e3 * i)
			if i < 3 && len(found) > 0 {
				t.Errorf("after %d readings: %+v", i+1, found)
			}
			ignore := cmpopts.IgnoreFields(v1alpha1.DegradedLink{}, "Time", "Since")
			if i == 3 && !cmp.Equal([]v1alpha1.DegradedLink{want}, found, ignore) {
				t.Error(cmp.Diff([]v1alpha1.DegradedLink{want}, found, ignore))
			}
		}
		for range 5 {
			read(900e3)
		}
		if found := read(900e3); len(found) > 0 {
			t.Errorf("after six good readings: %+v", found)
		}
	})
}

// A fatal error of an NVSwitch is a finding at once, also for the next process, until the driver takes the switch again.
func TestSXids(t *testing.T) {
	b := newBed(t)
	counters := rdma.NewCounters(t.TempDir(), rdma.CountersEvery)
	var log *nvswitch.Log
	path := filepath.Join(t.TempDir(), "kmsg")
	read := func(text string) []v1alpha1.DegradedLink {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if log == nil {
			log, err = nvswitch.Open(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.Counters, b.Switches = counters, log
		counters.Scan()
		b.round(t)
		return b.object.Spec.DegradedLinks
	}
	if found := read("5,0,0,-;Linux version 6.18\n"); len(found) != 0 {
		t.Errorf("without errors: %+v", found)
	}
	want := []v1alpha1.DegradedLink{{
		ID: "0000:06:00.0", Link: "NVSwitch link 30", What: "sxid-fatal", Value: "20034 LTSSM Fault Up", Limit: "none",
		Source: "NVSwitch driver",
	}}
	ignore := cmpopts.IgnoreFields(v1alpha1.DegradedLink{}, "Time", "Since")
	found := read("3,9,60000000,-;nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n")
	if diff := cmp.Diff(want, found, ignore); diff != "" || found[0].Since.After(found[0].Time.Time) {
		t.Errorf("since %s (-want +got):\n%s", found[0].Since, diff)
	}
	b.restart(t)
	log = nil
	if err := os.Remove(path); err != nil { // The kernel has overwritten the record.
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read(""), ignore); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	if found := read("6,99,90000000,-;nvidia-nvswitch: Probing device 0000:06:00.0, Vendor Id = 0x10de\n"); len(found) != 0 {
		t.Errorf("after a reset: %+v", found)
	}
}

// A counter that stands at its highest value is named once, with what to do.
func TestFullCounters(t *testing.T) {
	tree := sysfstest.New(t)
	dir := "sys/class/infiniband/mlx5_0/ports/1/"
	tree.Write(dir+"link_layer", "InfiniBand")
	tree.Write(dir+"counters/symbol_error", "65535")
	b := newBed(t)
	b.Counters = rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
	b.Counters.Scan()
	b.round(t)
	got := b.object.Spec.Skipped
	if len(got) != 1 || got[0].Name != "mlx5_0 port 1" || !strings.Contains(got[0].Reason, "symbol-errors: the counter has stopped") {
		t.Errorf("skipped: %+v", got)
	}
}
