package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// Of kube-scheduler's own server each connection with an unfinished header takes more than 1 MiB.
func TestUnfinishedHeaders(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	o := options.NewOptions()
	o.Master, o.ConfigFile = api.URL, documented
	var err error
	if o.SecureServing.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	config, _, err := setup(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	stop := make(chan struct{})
	ended, _, err := config.SecureServing.Serve(ok, 0, stop)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	insecure := &tls.Config{InsecureSkipVerify: true} // The scheduler's certificate is its own.
	address := o.SecureServing.Listener.Addr().String()
	header := "GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 1<<20)
	before := heap()
	for i := range 330 {
		from := &net.TCPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i))}
		c, err := (&net.Dialer{LocalAddr: from, Timeout: time.Minute}).Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(tls.Client(c, insecure), header) // The server may close the connection before.
	}
	if got := int64(heap()) - int64(before); got > 32<<20 {
		t.Errorf("330 unfinished headers took %d MiB", got>>20)
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: insecure}}
	resp, err := client.Get("https://" + address + "/livez")
	if err != nil {
		t.Fatalf("a probe beside the other connections: %v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a probe got %s", resp.Status)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
