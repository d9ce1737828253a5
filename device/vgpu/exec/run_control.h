// Part of the switch of run.h: branches, calls and the end of lanes. The cases set g->pc or pc themselves; most end
// with goto again.
    case E_nanosleep: {
      u32 longest = 0;
      EACH(m) longest = U32(in->a)[l] > longest ? U32(in->a)[l] : longest;
      k->slept += longest < MAX_SLEEP ? longest : MAX_SLEEP;
      k->yield = YIELD_AT_JUMP;
      break;
    }
    case E_yield:
      k->yield = YIELD_AT_JUMP;
      break;
    case E_bra: {
      int to = (int)in->imm;
      u32 stay = mask & ~m;
      if (stay == 0) {
        if (to <= pc) {
          g->turns++;
          if (++g->back >= BACK_LIMIT && w->ng > 1) {
            g->pc = to;
            turn(w, gi);
            goto again;
          }
          if (k->yield) {
            k->yield = 0;
            g->pc = to;
            if (w->ng > 1) turn(w, gi);
            k->executed += (u64)(start_budget - budget);
            return 1;
          }
        }
        pc = to;
        continue;
      }
      group *n = &w->g[w->ng++];
      *n = *g;
      n->mask = m;
      n->pc = to;
      n->forced = 0;
      n->back = 0;
      n->turns += to <= pc;
      g->fr->refs++;
      g->mask = stay;
      g->pc = pc + 1;
      if (to <= pc && ++g->back >= BACK_LIMIT) turn(w, gi);
      else if (g->forced && g->back >= BACK_LIMIT) turn(w, gi);
      goto again;
    }
    case E_brx: {
      const u32 *index = U32(in->a);
      u32 rest = m, stay = mask & ~m;
      int first = 1;
      while (rest) {
        u32 i = index[__builtin_ctz(rest)], same = 0;
        EACH(rest) same |= (u32)(index[l] == i) << l;
        rest &= ~same;
        int to = i < (u32)in->n ? extra[in->x + (int)i] : pc + 1;
        if (first && !stay) {
          g->pc = to;
          g->mask = same;
        } else {
          group *n = &w->g[w->ng++];
          *n = *g;
          n->mask = same;
          n->pc = to;
          g->fr->refs++;
        }
        first = 0;
      }
      if (stay) {
        g->mask = stay;
        g->pc = pc + 1;
      }
      goto again;
    }
    case E_call: case E_calli: {
      u32 who = m;
      int callee = (int)in->imm;
      if (in->op == E_calli) {
        const u64 *t = U64(in->a);
        u64 target = t[__builtin_ctz(m)];
        who = 0;
        EACH(m) who |= (u32)(t[l] == target) << l;
        callee = (int)((target - VG_CODE_WINDOW) >> 4);
        if (target >> 56 != 0x42 || callee >= launch->nfuncs || launch->funcs[callee] == NULL) {
          g->pc = pc;
          FAULT(k, w, g, __builtin_ctz(m), call_target, .address = target);
          FAULTED
        }
      }
      vg_func *to = launch->funcs[callee];
      if (to == NULL) {
        g->pc = pc;
        FAULT(k, w, g, __builtin_ctz(m), unsupported);
        FAULTED
      }
      if (who != mask) { // the others continue, or call later
        group *n = &w->g[w->ng++];
        *n = *g;
        n->mask = mask & ~who;
        n->pc = in->guard >= 0 && !(m & ~who) ? pc + 1 : pc;
        if (in->guard >= 0 && (m & ~who) && (mask & ~m)) { // three ways: evaluate the guard again
          n->pc = pc;
        }
        n->forced = 0;
        g->fr->refs++;
        g->mask = who;
      }
      frame *fr = new_frame(k, to);
      fr->up = g->fr;
      fr->return_pc = pc + 1;
      fr->local = g->fr->local + (u32)f->local_size;
      fr->stack = g->fr->stack + (u32)to->stack;
      if (fr->stack > launch->stack) {
        g->pc = pc;
        FAULT(k, w, g, __builtin_ctz(who), stack_overflow, .depth = g->depth + 1, .limit = launch->stack);
        FAULTED
      }
      if ((u64)fr->local + (u64)to->local_size > LOCAL_BYTES) {
        g->pc = pc;
        FAULT(k, w, g, __builtin_ctz(who), unsupported, .feature = FEATURE_LOCAL);
        FAULTED
      }
      const int32_t *x = extra + in->x; // from, to and size of arguments, then of results
      int nargs = *x++;
      for (int i = 0; i < nargs; i++, x += 3)
        EACH(who) {
          u8 *lane = w->local + (u64)l * LOCAL_BYTES;
          memcpy(lane + fr->local + (u32)x[1], lane + g->fr->local + (u32)x[0], (size_t)x[2]);
          if (!w->local_shadow) continue;
          if (i == 0) memset(lane + fr->local - w->local + w->local_shadow, 0, (size_t)to->local_size);
          written(w, lane + fr->local + (u32)x[1], (size_t)x[2]);
          passed(w, lane + fr->local + (u32)x[1], lane + g->fr->local + (u32)x[0], x[2]);
        }
      fr->nout = *x++;
      fr->out = x;
      g->fr = fr;
      g->pc = 0;
      g->depth++;
      goto again;
    }
    case E_ret:
      if (g->fr->up != NULL) {
        if (m != mask) split(w, g, mask & ~m, pc + 1);
        frame *fr = g->fr;
        const int32_t *x = fr->out;
        for (int i = 0; i < fr->nout; i++, x += 3)
          EACH(m) {
            u8 *lane = w->local + (u64)l * LOCAL_BYTES;
            memcpy(lane + fr->up->local + (u32)x[0], lane + fr->local + (u32)x[1], (size_t)x[2]);
            written(w, lane + fr->up->local + (u32)x[0], (size_t)x[2]);
            passed(w, lane + fr->up->local + (u32)x[0], lane + fr->local + (u32)x[1], x[2]);
          }
        g->pc = fr->return_pc;
        g->fr = fr->up;
        g->depth--;
        fr->up->refs++;
        drop_frame(k, fr);
        goto again;
      }
      // fall through
    case E_exit:
      if (m != mask) split(w, g, mask & ~m, pc + 1);
      g->pc = pc;
      end_lanes(k, w, gi);
      goto again;
    case E_trap: case E_brkpt:
      g->pc = pc;
      FAULT(k, w, g, __builtin_ctz(m), trap);
      FAULTED
    case E_folded:
      g->pc = pc;
      FAULT(k, w, g, __builtin_ctz(m), folded_register);
      if (state->stop) FAULTED
      break;
    case E_missing:
      g->pc = pc;
      FAULT(k, w, g, __builtin_ctz(m), unsupported);
      FAULTED
