package agent

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func pair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	certificate, key, err := NewKey(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// serve starts an agent and returns its address.
func serve(t *testing.T, certificate, key []byte) string {
	t.Helper()
	config, err := Config(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, config) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func client(t *testing.T, certificate, key []byte) *http.Client {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := ReadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
}

func TestRun(t *testing.T) {
	certificate, key := pair(t)
	address, with := serve(t, certificate, key), client(t, certificate, key)
	for _, tt := range []struct {
		name      string
		command   Command
		out, want string
	}{
		{name: "output and variables", command: Command{Args: []string{"sh", "-c", "echo $WORD; echo e >&2"}, Env: []string{"WORD=w"}}, out: "w\ne\n"},
		{name: "exit code", command: Command{Args: []string{"sh", "-c", "echo x; exit 3"}}, out: "x\n", want: "sh: exit status 3"},
		{name: "unknown program", command: Command{Args: []string{"no-such-program"}}, want: "executable file not found"},
		{name: "nothing", want: "the command has no program"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Run(t.Context(), with, address, &tt.command, &out)
			if out.String() != tt.out {
				t.Errorf("output %q, want %q", out.String(), tt.out)
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestRunEnds cancels a client, and waits until the program and its child are gone.
func TestRunEnds(t *testing.T) {
	certificate, key := pair(t)
	address, with := serve(t, certificate, key), client(t, certificate, key)
	ctx, cancel := context.WithCancel(t.Context())
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	command := &Command{Args: []string{"sh", "-c", "(exec 3>" + fifo + "; echo up; sleep 600) & sleep 600"}}
	ended := make(chan error, 1)
	out := make(chan struct{}, 10)
	go func() { ended <- Run(ctx, with, address, command, signal(out)) }()
	reader, err := os.Open(fifo) // It waits for the program.
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	<-out
	cancel()
	if err := <-ended; err == nil {
		t.Error("no error of a client that was canceled")
	}
	if _, err := reader.Read(make([]byte, 1)); err == nil { // It returns when nobody has the fifo open.
		t.Error("read something")
	}
}

type signal chan struct{}

func (s signal) Write(b []byte) (int, error) {
	s <- struct{}{}
	return len(b), nil
}

func TestAnotherKey(t *testing.T) {
	certificate, key := pair(t)
	address := serve(t, certificate, key)
	other, otherKey := pair(t)
	for name, with := range map[string]*http.Client{
		"another key": client(t, other, otherKey),
		"no key":      {Transport: &http.Transport{}},
	} {
		if err := Run(t.Context(), with, address, &Command{Args: []string{"true"}}, new(bytes.Buffer)); err == nil {
			t.Errorf("%s: the agent ran a program", name)
		}
	}
}
