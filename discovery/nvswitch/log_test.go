package nvswitch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
)

// recorded are lines of an HGX H100's boot, and of faults as public reports have them.
const recorded = `6,812,38100000,-;nvidia-nvswitch: Probing device 0000:04:00.0, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000 
 SUBSYSTEM=pci
 DEVICE=+pci:0000:04:00.0
3,813,38175561,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b, 0x00000000, 0x0000002b, 0x80005302, 0x00000000, 0x00000000, 0x00000000, 0x00000000}
3,814,38178720,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt
3,815,38180708,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00
3,816,9000000000,c;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)
3,817,9000100000,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO
3,818,9000200000,-;nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
12,819,9000300000,-;nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 31 written by a program
3,820,9000400000,-;NVRM: Xid (PCI:0000:c1:00): 74, pid=1, NVLink: fatal error detected on link 6
`

// open returns a log over a fifo, which holds what is written until it is read, and a function that writes.
func open(t *testing.T) (*Log, func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(l.boot); age <= 0 {
		t.Errorf("the machine booted %s ago", age)
	}
	l.boot = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return l, func(text string) {
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRead(t *testing.T) {
	l, write := open(t)
	if all := l.Read(); len(all) != 0 {
		t.Errorf("an empty log has %v", all)
	}
	write(recorded)
	at := func(seconds float64) time.Time { return l.boot.Add(time.Duration(seconds * float64(time.Second))) }
	want := map[Link]machine.SwitchErrors{
		{"0000:04:00.0", "NVSwitch link 44"}: {NonFatal: machine.SXids{Count: 1, Text: "22013 Minion Link DLREQ interrupt", Since: at(38.17872)}},
		{"0000:04:00.0", "NVSwitch link 46"}: {NonFatal: machine.SXids{Count: 2, Text: "28006 MC TS crumbstore MCTO", Since: at(9000)}},
		{"0000:06:00.0", "NVSwitch link 30"}: {Fatal: machine.SXids{Count: 1, Text: "20034 LTSSM Fault Up", Since: at(9000.2)}},
	}
	for range 2 { // The second reading finds nothing new.
		if diff := cmp.Diff(want, l.Read()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	// The driver takes a switch again, after a reset.
	write("6,900,9100000000,-;nvidia-nvswitch: Probing device 0000:04:00.0, Vendor Id = 0x10de\n")
	if all := l.Read(); len(all) != 1 {
		t.Errorf("after a reset: %v", all)
	}
}

// What an earlier process has read lasts as long as the machine runs.
func TestResume(t *testing.T) {
	l, write := open(t)
	of, since := Link{"0000:06:00.0", "NVSwitch link 30"}, l.boot.Add(time.Hour)
	l.Resume(of, "20034 LTSSM Fault Up", l.boot.Add(-time.Hour))
	if all := l.Read(); len(all) != 0 {
		t.Errorf("an error before the boot: %v", all)
	}
	l.Resume(of, "20034 LTSSM Fault Up", since)
	want := machine.SXids{Count: 1, Text: "20034 LTSSM Fault Up", Since: since}
	if diff := cmp.Diff(want, l.Read()[of].Fatal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write(strings.SplitAfter(recorded, "\n")[0])
	if all := l.Read(); len(all) != 1 {
		t.Errorf("another switch was probed: %v", all)
	}
}

func TestNoLog(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "kmsg"))
	if err == nil || l.Read() != nil {
		t.Errorf("%v", err)
	}
	l.Resume(Link{}, "", time.Now())
}

func FuzzAdd(f *testing.F) {
	for line := range strings.Lines(recorded) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		l := &Log{links: map[Link]machine.SwitchErrors{}}
		l.add(line)
		for link, e := range l.links {
			text := e.Fatal.Text + e.NonFatal.Text
			if e.Fatal.Count+e.NonFatal.Count != 1 || link.Switch == "" || link.Name == "" || text == "" || len(text) > 6+maxText {
				t.Errorf("%v: %+v", link, e)
			}
			for _, r := range link.Switch + link.Name + text {
				if r < ' ' || r > '~' {
					t.Errorf("%v: %+v", link, e)
				}
			}
		}
	})
}
