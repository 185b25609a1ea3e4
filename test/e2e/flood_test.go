//go:build e2e && linux

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// flooder makes the test binary a client, in the network namespace that it runs in, that
// holds connections and finishes no request.
const flooder = "hold-connections"

// holdConnections opens so many connections to an address from so many addresses of this
// machine, none for the one that the kernel takes, and sends a header of so many bytes that does
// not end. It prints a line then, and holds them until its input ends.
func holdConnections(args []string) error {
	address := args[0]
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(args[1+i])
		if err != nil {
			return fmt.Errorf("argument %d: %w", i+1, err)
		}
		numbers[i] = n
	}
	count, sources, length := numbers[0], numbers[1], numbers[2]
	var header []byte
	if length > 0 {
		header = append([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\nA: "), bytes.Repeat([]byte("a"), length)...)
	}
	for i := range count {
		dialer := net.Dialer{Timeout: 10 * time.Second}
		if sources > 0 {
			dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 1, byte(i%sources>>8), byte(i%sources))}
		}
		c, err := dialer.Dial("tcp", address)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		defer c.Close()
		_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = c.Write(header) // The server may close the connection before.
	}
	_, _ = fmt.Fprintln(os.Stdout, "held")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// flood holds connections to an address of the node until the test ends.
func (b *bed) flood(t *testing.T, address string, count, sources, length int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := b.NodeCommand(t.Context(), self, flooder, address, strconv.Itoa(count), strconv.Itoa(sources), strconv.Itoa(length))
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // Its context may be over before.
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("connections to %s: %q, %v", address, line, err)
	}
}

// fresh is what a new connection from the node gets, as a probe does: within seconds, and
// at the third try at the latest.
func (b *bed) fresh(t *testing.T, url string) (answer string, err error) {
	t.Helper()
	for range 3 {
		if answer, err = b.NodeExec(t.Context(), "curl", "-sSf", "--max-time", "3", url); err == nil {
			break
		}
	}
	return answer, err
}

// resident is the memory of a daemon, by its own metrics.
func (b *bed) resident(t *testing.T, address string) (bytes float64) {
	t.Helper()
	text, err := b.fresh(t, "http://"+address+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "process_resident_memory_bytes "); ok {
			if bytes, err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if bytes == 0 {
		t.Fatalf("%s: no memory in its metrics", address)
	}
	return bytes
}

// started are the pods of heddle, each with how often its container started again, and
// those that are not ready.
func (b *bed) started(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "-n", suite, "get", "pods", "--sort-by=.metadata.name", "-l", "app.kubernetes.io/part-of=heddle", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}{"\n"}{end}`)
}

// stepUnfinished is what took every daemon of a node down once: any pod can open 330
// connections to its port, each with a header of 1 MB that does not end, and a daemon's limit is
// 128 MiB or 256.
func stepUnfinished(t *testing.T, b *removable) {
	const most = 32 << 20
	before := b.started(t)
	if strings.Count(before, " true\n") < 4 {
		t.Fatalf("heddle's pods:\n%s", before)
	}
	for _, port := range []int{9101, 9102, 9103} {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		had := b.resident(t, address)
		for _, sources := range []int{1, 330} {
			b.flood(t, address, 330, sources, 1<<20)
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if answer, err := b.fresh(t, "http://"+address+path); answer != "ok\n" {
				t.Errorf("%s of %s beside the connections: %q, %v", path, address, answer, err)
			}
		}
		has := b.resident(t, address)
		t.Logf("%s: %.1f MB before, %.1f MB beside 660 connections", address, had/1e6, has/1e6)
		if has > had+most {
			t.Errorf("%s: %.1f MB before, %.1f MB beside the connections", address, had/1e6, has/1e6)
		}
	}
	if after := b.started(t); after != before {
		t.Errorf("heddle's pods were\n%sand are\n%s", before, after)
	}
}

// stepIdle is what took topo-master down through its own probes: 1,100 connections without
// a request. The documented command gets its answer all the same.
func stepIdle(t *testing.T, b *removable) {
	before := b.started(t)
	ip := b.pods(t, topoMasterName)[0].Status.PodIP
	b.flood(t, ip+":9001", 1100, 0, 0)
	for _, url := range []string{":9001/healthz", ":9002/healthz", ":9002/readyz"} {
		if answer, err := b.fresh(t, "http://"+ip+url); answer != "ok\n" {
			t.Errorf("%s beside the connections: %q, %v", url, answer, err)
		}
	}
	tree := b.documented(t, "TOPO_MASTER_IP=`kubectl get pod -n heddle-system -owide | grep topo-master | awk {'print $6'}`\n"+
		"curl -sS --max-time 20 $TOPO_MASTER_IP:9001/node_group")
	if want := `"name":"` + b.Node() + `","kind":"node"`; !strings.Contains(tree, want) {
		t.Errorf("/node_group beside the connections has no %s: %s", want, tree)
	}
	if after := b.started(t); after != before {
		t.Errorf("heddle's pods were\n%sand are\n%s", before, after)
	}
}

// documented runs a command of the documentation in a shell on the node, with the
// administrator's kubeconfig.
func (b *bed) documented(t *testing.T, script string) string {
	t.Helper()
	cmd, err := b.NodeCommand(t.Context(), "sh", "-euc", script)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(errors.Join(err, errors.New(stderr.String())))
	}
	return stdout.String()
}
