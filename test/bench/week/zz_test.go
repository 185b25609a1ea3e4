package week
import ("testing";"os";"time")
func TestZZ(t *testing.T) {
	plan := Irregular(); plan.Load = 0.85
	d := Disciplines()
	b := time.Now()
	r := Queue(plan, []Discipline{d[0], d[len(d)-1]}, 1, 2)
	t.Log(time.Since(b))
	PrintQueue(os.Stderr, plan, r)
}
