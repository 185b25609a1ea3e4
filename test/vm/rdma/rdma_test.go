//go:build vmguest && linux

package rdma_test

import (
	"os"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/vm/guest"
)

func TestMain(m *testing.M) { guest.Main(m) }

func TestHello(t *testing.T) { b, _ := os.ReadFile("/proc/cmdline"); println(strings.Join(os.Args, "|"), string(b), strings.Join(os.Environ(), "|")) }
