package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestClientByTheRulesOfKubectl asks for the API server's address only: no
// request is made.
func TestClientByTheRulesOfKubectl(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := func(name, server string) string {
		path := filepath.Join(dir, name)
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: " + name + ", cluster: {server: " + server + "}}]\n" +
			"contexts: [{name: " + name + ", context: {cluster: " + name + "}}]\ncurrent-context: " + name + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b, none := kubeconfig("a", "https://a:6443"), kubeconfig("b", "https://b:6443"), filepath.Join(dir, "none")
	for _, tt := range []struct {
		name, env string
		args      []string
		want, err string
	}{
		{name: "the environment", env: a, want: "https://a:6443"},
		{name: "a list, of which one is missing", env: none + ":" + b + ":" + a, want: "https://b:6443"},
		{name: "another context", env: a + ":" + b, args: []string{"--context", "b"}, want: "https://b:6443"},
		{name: "the flag wins", env: a, args: []string{"--kubeconfig", b}, want: "https://b:6443"},
		{name: "the flag's file is missing", env: a, args: []string{"--kubeconfig", none}, err: none},
		{name: "no such context", env: a, args: []string{"--context", "c"}, err: `context "c" does not exist`},
		{name: "nothing", env: none, err: "no API server to ask: give --kubeconfig or --server, or set $KUBECONFIG"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tt.env)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			var f Flags
			c := &cobra.Command{}
			f.Register(c)
			if err := c.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			client, err := f.Client()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q in it", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := client.Get().URL().String(); !strings.HasPrefix(got, tt.want+"/") {
				t.Errorf("asks %s, want %s", got, tt.want)
			}
		})
	}
}
