package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckEnv: what the container gets by the runtime's bundle, in the runtime's order.
func TestCheckEnv(t *testing.T) {
	dir := t.TempDir()
	state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, dir)
	for name, tt := range map[string]struct{ env, want, err string }{
		"heddle's":              {`"PATH=/bin", "LIMIT=30", "REDIRECT="`, "LIMIT=30 REDIRECT=", ""},
		"a longer name":         {`"LIMIT_0=100", "LIMIT=30"`, "LIMIT=30", ""},
		"twice the same":        {`"LIMIT=30", "LIMIT=30"`, "LIMIT=30", ""},
		"the pod's":             {`"LIMIT=100", "REDIRECT=/other.so"`, "LIMIT=30 REDIRECT=", "sets LIMIT, REDIRECT, which"},
		"the pod's before it":   {`"LIMIT=100", "LIMIT=30"`, "LIMIT=30", ""},
		"the pod's after it":    {`"LIMIT=30", "LIMIT=100"`, "LIMIT=30", "sets LIMIT, which"},
		"of the same beginning": {`"LIMIT=300"`, "LIMIT=30", "sets LIMIT, which"},
		"none":                  {``, "LIMIT=30", "sets LIMIT, which"},
		"no variable":           {``, "LIMIT", `"LIMIT" is not NAME=VALUE`},
		"no name":               {``, "=30", `"=30" is not NAME=VALUE`},
	} {
		bundle := `{"root": {"path": "rootfs"}, "process": {"env": [` + tt.env + `]}}`
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(bundle), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkEnv(strings.NewReader(state), strings.Fields(tt.want))
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
	for _, bad := range []string{"{", `{"bundle": "/nowhere"}`} {
		if err := checkEnv(strings.NewReader(bad), nil); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
