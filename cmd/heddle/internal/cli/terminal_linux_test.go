package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// terminal is a pseudoterminal of the kernel: what is written to shown is read from seen.
func terminal(t *testing.T, columns uint16) (shown, seen *os.File) {
	t.Helper()
	seen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudoterminals: ", err)
	}
	t.Cleanup(func() { _ = seen.Close() })
	fd := int(seen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	shown, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudoterminals: ", err)
	}
	t.Cleanup(func() { _ = shown.Close() })
	return shown, seen
}

// On a terminal a table has colors and fits; colors can be turned off, and no format for
// programs has any.
func TestTerminal(t *testing.T) {
	reason := strings.Repeat("reason ", 20)
	table := Table([][]string{{"STATUS", "WHY"}, {"Ready", reason}})
	for _, tt := range []struct {
		name    string
		columns uint16
		args    []string
		noColor string
		colors  bool
		lines   int
	}{
		{"plain", 80, nil, "", true, 5},
		{"a wide one", 200, nil, "", true, 2},
		{"NO_COLOR", 80, nil, "1", false, 5},
		{"wide", 80, []string{"-o", "wide"}, "", true, 2},
		{"JSON", 80, []string{"-o", "json"}, "", false, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tt.noColor)
			t.Setenv("TERM", "xterm")
			shown, seen := terminal(t, tt.columns)
			c := &cobra.Command{Use: "test"}
			o := AddOutput(c)
			c.SetOut(shown)
			c.SetArgs(append([]string{}, tt.args...))
			c.RunE = func(c *cobra.Command, _ []string) error {
				return o.Print(c, map[string]string{"status": "Ready"}, table)
			}
			if err := c.Execute(); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 4096)
			n, err := seen.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got := string(b[:n])
			if strings.Contains(got, "\x1b[") != tt.colors || strings.Count(got, "\n") != tt.lines {
				t.Errorf("colors %v, %d lines wanted:\n%q", tt.colors, tt.lines, got)
			}
		})
	}
}
