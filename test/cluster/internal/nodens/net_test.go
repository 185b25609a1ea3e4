//go:build linux

package nodens

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// TestForward goes through this process's own network namespace: entering it
// takes the same calls, and the same privilege, as entering a node's.
func TestForward(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("setns needs root")
	}
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	server, front := listen(), listen()
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		c, err := server.Accept()
		if err != nil {
			return
		}
		data, _ := io.ReadAll(c) // Ends only if the client's half-close comes through.
		_, _ = c.Write(append([]byte("got "), data...))
		_ = c.Close()
	}()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Forward(ctx, front, "/proc/self/ns/net", server.Addr().String()) }()

	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = client.Write([]byte("ping"))
	closeWrite(client)
	answer, readErr := io.ReadAll(client)
	if err := errors.Join(err, readErr, client.Close()); err != nil || string(answer) != "got ping" {
		t.Errorf("answer is %q, %v", answer, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Forward: %v", err)
	}
}
