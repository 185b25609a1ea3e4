//go:build e2e && linux

package devices

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nodeNet is the network namespace of a rig's node.
type nodeNet struct {
	file string
	http *http.Client
}

func (r *rig) network() (*nodeNet, error) {
	for _, c := range r.Status() {
		if c.Name != "holder" || c.PID == 0 {
			continue
		}
		n := &nodeNet{file: fmt.Sprintf("/proc/%d/ns/net", c.PID)}
		n.http = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			// heddle-scheduler makes its own certificate.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext:     func(_ context.Context, _, address string) (net.Conn, error) { return n.dial(address) },
		}}
		return n, nil
	}
	return nil, errors.New("the node has no namespaces")
}

// enter moves the calling thread there; it ends with its goroutine.
func (n *nodeNet) enter() error {
	runtime.LockOSThread()
	f, err := os.Open(n.file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// listen takes a free port of the node's loopback.
func (n *nodeNet) listen() (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = n.enter(); err == nil {
			l, err = net.Listen("tcp4", "127.0.0.1:0")
		}
	}()
	<-done
	return l, err
}

// dial opens a connection on the node.
func (n *nodeNet) dial(to string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = n.enter(); err == nil {
			c, err = net.DialTimeout("tcp4", to, 2*time.Second)
		}
	}()
	<-done
	return c, err
}

// get asks a server on the node.
func (n *nodeNet) get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := n.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, tail(string(body), 300))
	}
	return string(body), err
}

// daemon is one of heddle's programs on the node.
type daemon struct {
	*process
	name string
	// url is where it answers /readyz and /metrics.
	url string
}

// use is what a process has that must not grow.
type use struct{ goroutines, descriptors int }

func (d *daemon) use(ctx context.Context, n *nodeNet) (u use, err error) {
	text, err := n.get(ctx, d.url+"/metrics")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "go_goroutines "); ok {
			u.goroutines, err = strconv.Atoi(value)
		}
	}
	open, problem := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid()))
	u.descriptors = len(open)
	if u.goroutines == 0 && err == nil {
		err = errors.New("/metrics has no go_goroutines")
	}
	return u, errors.Join(err, problem)
}
