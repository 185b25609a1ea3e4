package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOutcomeOfExitCode(t *testing.T) {
	for _, tt := range []struct {
		name string
		code int
		want Outcome
	}{
		{"tests passed", 33, Passed},
		{"tests failed", 35, Failed},
		{"the guest reset without a word", 0, Died},
		{"QEMU's own failure, never a pass", 1, NotStarted},
		{"killed", -1, NotStarted},
	} {
		if got := outcome(tt.code); got != tt.want {
			t.Errorf("%s: code %d is %q, want %q", tt.name, tt.code, got, tt.want)
		}
	}
}

func TestTestsOfOutput(t *testing.T) {
	output := strings.Join([]string{
		"[    1.2] some driver: hello", "=== RUN   TestA", "    a_test.go:3: --- PASS: TestQuoted (0.00s)",
		"--- PASS: TestA (0.01s)", "=== RUN   TestB", "=== RUN   TestB/sub", "--- FAIL: TestB (0.20s)",
		"    --- FAIL: TestB/sub (0.20s)", "[    3.4] eth0: noise--- SKIP: TestC (0.00s)", "--- what: ever", "PASS",
	}, "\n")
	want := []Test{{"TestA", "PASS"}, {"TestB", "FAIL"}, {"TestC", "SKIP"}}
	if diff := cmp.Diff(want, testsOf(output)); diff != "" {
		t.Errorf("tests (-want +got):\n%s", diff)
	}
}

func TestCommandLineGivesInitItsArguments(t *testing.T) {
	line := commandLine([]string{"-test.run=TestA|TestB", "-test.timeout=90s"})
	_, args, ok := strings.Cut(line, " -- ")
	if want := `-test.v "-test.run=TestA|TestB" "-test.timeout=90s"`; !ok || args != want {
		t.Errorf("arguments %s, want %s", args, want)
	}
	// A word that the kernel does not know and that has no = goes to init, and
	// ends the flags there.
	for word := range strings.FieldsSeq(strings.TrimSuffix(line, " -- "+args)) {
		if !strings.Contains(word, "=") && word != "quiet" && word != "no_timer_check" {
			t.Errorf("%q becomes an argument of init", word)
		}
	}
}

// fake puts a script in a tool's place.
func fake(t *testing.T, tool, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func fakeQEMU(t *testing.T, script string) {
	t.Helper()
	fake(t, "qemu-system-x86_64", script)
}

func spec(t *testing.T) Spec {
	t.Helper()
	file := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(file, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Spec{TestBinary: file}
}

func TestRunReportsHowTheGuestEnded(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		want         Result
	}{
		{
			"passed", `printf -- '--- PASS: TestA (0.00s)\r\nPASS\r\n'; exit 33`, 0,
			Result{Outcome: Passed, Output: "--- PASS: TestA (0.00s)\nPASS\n", Tests: []Test{{"TestA", "PASS"}}},
		},
		{"failed", "exit 35", 0, Result{Outcome: Failed}},
		{"panicked", "echo Kernel panic; exit 0", 0, Result{Outcome: Died, Output: "Kernel panic\n"}},
		{
			"a device that QEMU does not have", "echo no such device >&2; exit 1", 0,
			Result{Outcome: NotStarted, Output: "no such device\n"},
		},
		{"hung", "exec sleep 60", 50 * time.Millisecond, Result{Outcome: TimedOut}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fakeQEMU(t, tt.script)
			s := spec(t)
			s.Timeout = tt.timeout
			got, err := new(Guest).Run(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if got.Took == 0 || got.Took > 30*time.Second {
				t.Errorf("took %s", got.Took)
			}
			got.Took = 0
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunFailsWithoutItsFilesOrItsContext(t *testing.T) {
	fakeQEMU(t, "exec sleep 60")
	if _, err := new(Guest).Run(t.Context(), Spec{TestBinary: "/nowhere/init"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a test binary: %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := new(Guest).Run(ctx, spec(t)); !errors.Is(err, cause) {
		t.Errorf("without time: %v", err)
	}
}

func TestMissingToolsAreNamedWithTheirPackages(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Prepare(t.Context(), t.TempDir(), t.Output())
	missing, ok := errors.AsType[*MissingError](err)
	if !ok {
		t.Fatalf("error %v, want a MissingError", err)
	}
	for _, word := range []string{"qemu-system-x86_64", "zstd", "install the packages qemu-system-x86,", "xz-utils"} {
		if !strings.Contains(missing.Error(), word) {
			t.Errorf("%q does not name %s", missing, word)
		}
	}
}
